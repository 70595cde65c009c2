-- How many operations are confirmed: the tally, and what the seals since the last fold have changed (settled.store.counting).
SELECT coalesce((SELECT sum(count) FROM tally WHERE status = 'confirmed'), 0)
     + coalesce((SELECT sum(change.value)
                   FROM seal, json_tree(seal.counts) AS change
                  WHERE seal.id > (SELECT max(id) FROM seal) / 64 * 64 AND change.key = 'confirmed' AND change.type = 'integer'), 0)
