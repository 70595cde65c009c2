"""The pure core: words, the transition table, decisions and evidence. No I/O, no clock, only the standard library."""
