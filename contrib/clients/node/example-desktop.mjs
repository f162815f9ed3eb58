#!/usr/bin/env node
// A desktop's main loop: at most three backends at a time, and room for the next by proof alone.
//
//   node contrib/clients/node/example-desktop.mjs [--pool] [--hermes PATH] [--home DIR]
//
// On a terminal it takes commands (`help` lists them); otherwise it plays the ones in DEMO on real children in a temporary
// home. How room is made is in example-children.mjs; with --pool the children are those of a pool (example-pool.mjs), which
// makes room by itself.

import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { createInterface } from 'node:readline/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { OwnChildren } from './example-children.mjs';
import { PoolChildren } from './example-pool.mjs';
import { Client, probe } from './hermes.mjs';

// A full idle pool makes room at once; a full busy one says who is in the way, and waits for the first.
const DEMO = [
  ...['open ann', 'open bob', 'open cyd', 'list', 'open dan'],
  ...['work bob', 'hold cyd', 'ask dan', 'list', 'open eve', 'list', 'quit'],
];

const say = (text) => console.log(text);

/** A mode has `open(profile)`, `residents()` and `quit()`; a resident has `profile` and `endpoint`. Each is a flag: --children. */
const MODES = { children: OwnChildren, pool: PoolChildren };

/** What a person, or the demo, can say. */
function commands(pool) {
  const client = async (profile) => {
    const resident = (await pool.residents()).find((other) => other.profile === profile);
    if (!resident) throw new Error(`${profile} is not open`);
    return Client.connect(resident.endpoint);
  };
  return {
    open: async (profile) => say(`${profile} is open, pid ${(await pool.open(profile)).endpoint.pid}`),
    async list() {
      const verdicts = await Promise.all((await pool.residents()).map(({ endpoint }) => probe(endpoint)));
      for (const { profile, idle, detail, reason } of verdicts) say(`  ${profile}: ${idle ? 'idle' : detail ?? reason}`);
    },
    async work(profile) {
      const { turn } = await (await client(profile)).submit('demo', 'take two seconds');
      say(`turn ${turn} is accepted`);
    },
    async hold(profile) {
      await (await client(profile)).hold({ who: 'backup', why: 'copying files' });
    },
    async ask(profile) {
      await (await client(profile)).ask({ kind: 'approval', text: 'May I delete it?', choices: ['yes', 'no'] });
    },
  };
}

async function main() {
  const target = fileURLToPath(new URL('../../../target', import.meta.url));
  const built = ['release', 'debug'].map((kind) => path.join(target, kind, 'hermes'));
  const string = { type: 'string' };
  const flags = Object.keys(MODES).map((mode) => [mode, { type: 'boolean' }]);
  const { values: given } = parseArgs({ options: { hermes: string, home: string, ...Object.fromEntries(flags) } });
  const Mode = MODES[Object.keys(MODES).find((mode) => given[mode]) ?? 'children'];
  const folder = given.home ? null : mkdtempSync(path.join(tmpdir(), 'hd'));
  const homes = { HERMES_HOME: folder ?? path.resolve(given.home) };
  if (folder) homes.HERMES_RUNTIME_DIR = path.join(folder, 'run');
  const agent = "sh -c 'sleep 2; echo done'";
  const env = { HERMES_LOG: 'error', HERMES_AGENT_COMMAND: agent, ...process.env, ...homes };
  const pool = new Mode({ hermes: given.hermes ?? built.find(existsSync) ?? 'hermes', env });
  const known = commands(pool);
  const person = process.stdin.isTTY;
  const lines = person ? createInterface({ input: process.stdin, output: process.stdout, prompt: '> ' }) : DEMO;
  const leave = async () => {
    await pool.quit();
    if (folder) rmSync(folder, { recursive: true, force: true });
  };
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => leave().then(() => process.exit(0)));
  lines.prompt?.();
  try {
    for await (const line of lines) {
      if (!person) say(`> ${line}`);
      const [verb, profile] = line.trim().split(/\s+/);
      if (verb === 'quit') break;
      const run = Object.hasOwn(known, verb) ? known[verb] : () => say(`commands: ${Object.keys(known).join(', ')}, quit`);
      await run(profile).catch((error) => say(error.message));
      lines.prompt?.();
    }
  } finally {
    await leave();
  }
}

await main().catch((error) => {
  console.error(`example-desktop: ${error.message}`);
  process.exitCode = 1;
});
