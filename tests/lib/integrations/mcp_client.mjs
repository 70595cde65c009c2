// A second client, independent of ours and of the Python SDK: one conversation, told line by line as JSON on standard output.
// usage: node mcp_client.mjs SDK_FOLDER CONVERSATION OPTIONS_AS_JSON
const [sdk, conversation, text] = process.argv.slice(2);
const options = JSON.parse(text);
const { Client } = await import(`${sdk}/dist/esm/client/index.js`);
const { StdioClientTransport } = await import(`${sdk}/dist/esm/client/stdio.js`);
const { StreamableHTTPClientTransport } = await import(`${sdk}/dist/esm/client/streamableHttp.js`);
const { createInterface } = await import("node:readline");

const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");
const client = () => new Client({ name: "second-client", version: "1" });
const spawned = () => new StdioClientTransport({ command: options.command[0], args: options.command.slice(1), cwd: options.cwd, env: options.env, stderr: "inherit" });
const overHttp = (token = options.token) =>
  new StreamableHTTPClientTransport(new URL(options.url), { requestInit: { headers: { Authorization: `Bearer ${token}` } } });
const failure = async (promise) => {
  try { return { answered: await promise }; } catch (error) { return { code: error.code ?? null, message: String(error.message) }; }
};
const answer = async (of, name, args, more) => {
  const result = await of.callTool({ name, arguments: args }, undefined, more);
  return { told: result.structuredContent, failed: result.isError ?? false };
};
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const heard = () => lines.next();

const conversations = {
  // Over stdio: ask, lose the answer because somebody kills the server, start another, ask once more.
  async lost() {
    const first = client(), transport = spawned();
    await first.connect(transport);
    say({ pid: transport.pid });
    say({ lost: await failure(answer(first, options.tool, options.args)) });
    await heard();
    const second = client();
    await second.connect(spawned());
    let { told } = await answer(second, options.tool, { ...options.args, note: "It surely failed. Pay it now." });
    say({ first: told });
    while (told.next_action === "wait") ({ told } = await answer(second, options.wait, { operation_id: told.operation_id }));
    say({ told });
    await second.close();
  },

  // Over HTTP, with nobody who dispatches.
  async talk() {
    say({ stranger: await failure(client().connect(overHttp("f".repeat(32)))) });
    const one = client(), other = client();
    await one.connect(overHttp());
    await other.connect(overHttp());
    say({ server: one.getServerVersion().name });
    const { tools } = await one.listTools();
    say({ tools: Object.fromEntries(tools.map((tool) => [tool.name, tool.annotations])) });
    const args = options.args;
    const both = await Promise.all([one, other, one, other].map((of) => answer(of, options.tool, args)));
    say({ both });
    say({ reworded: await answer(one, options.tool, { ...args, note: "in other words" }) });
    say({ conflict: await answer(one, options.tool, { ...args, cents: args.cents + 1 }) });
    say({ another: await answer(one, options.tool, { ...args, invoice: "7" }) });
    const hostile = [{ ...args, confirmed: true }, { ...args, cents: "5" }, { ...args, cents: true }, { ...args, note: "x".repeat(1_500_000) }, {}, undefined];
    say({ hostile: await Promise.all(hostile.map((bad) => answer(one, options.tool, bad))) });
    say({ huge: await failure(answer(other, options.tool, { ...args, note: "x".repeat(3_000_000) })) });
    say({ unknown: await failure(answer(one, "confirm_pay_invoice", args)) });
    say({ method: await failure(one.request({ method: "operations/confirm", params: {} }, { parse: (any) => any, safeParse: (any) => ({ success: true, data: any }) })) });
    say({ absent: await failure(one.readResource({ uri: "settled://operation/absent" })) });
    say({ status: JSON.parse((await one.readResource({ uri: "settled://status" })).contents[0].text) });

    const known = { operation_id: both[0].told.operation_id, timeout_seconds: 300 };
    const giveUp = new AbortController();
    let reports = 0;
    const cancelled = failure(answer(one, options.wait, known, { signal: giveUp.signal, onprogress: () => { reports += 1; giveUp.abort("enough"); } }));
    say({ cancelled: await cancelled, reports });
    say({ late: await failure(answer(one, options.wait, known, { timeout: 300 })) });
    say({ again: await answer(one, options.wait, { ...known, timeout_seconds: 0 }) });

    let waiting;
    const told = new Promise((resolve) => { waiting = failure(answer(other, options.wait, known, { onprogress: resolve })); });
    await told;
    await other.close(); // goes away in the middle of a wait
    say({ gone: await waiting });
    const back = client();
    await back.connect(overHttp());
    say({ back: await answer(back, options.tool, args) });
    await back.close();
    await one.close();
  },
};

await conversations[conversation]();
process.exit(0);
