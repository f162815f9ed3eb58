// A probe from Node over the control socket and over HTTP with a kept connection, one after the other in the same run:
//
//   cargo build --release --bins && node contrib/bench/node_doors.mjs [ROUNDS]
//
// Prints both medians and their ratio; exits 1 if the socket is not the faster door.

import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { Client } from '../clients/node/hermes.mjs';

const ROUNDS = Number(process.argv[2] ?? 3_000);
const WARM_UP = 500;

const target = fileURLToPath(new URL('../../target', import.meta.url));
const built = ['release', 'debug'].map((kind) => path.join(target, kind, 'hermes'));
const hermes = process.env.HERMES_BIN ?? built.find(existsSync) ?? 'hermes';

const home = mkdtempSync(path.join(tmpdir(), 'hb'));
const env = { PATH: process.env.PATH, HERMES_HOME: home, HERMES_RUNTIME_DIR: path.join(home, 'run'), HERMES_LOG: 'warn' };
const child = spawn(hermes, ['serve', '--port', '0'], { env, stdio: ['ignore', 'pipe', 'inherit'] });
const exited = new Promise((resolve) => child.once('exit', resolve));

try {
  await Promise.race([
    new Promise((resolve) => child.stdout.once('data', resolve)),
    exited.then(() => Promise.reject(new Error(`${hermes} did not come up`))),
  ]);
  const doors = [];
  for (const via of ['socket', 'http']) doors.push({ via, client: await Client.connect({ env }, { via }), took: [] });
  for (let round = -WARM_UP; round < ROUNDS; round += 1) {
    // In turn, so that whatever else the machine does falls on both.
    for (const { client, took } of round % 2 === 0 ? doors : [...doors].reverse()) {
      const begin = performance.now();
      const { idle } = await client.idle();
      const end = performance.now();
      if (idle !== true) throw new Error('not idle');
      if (round >= 0) took.push(end - begin);
    }
  }
  const at = (took, part) => took.sort((a, b) => a - b)[Math.floor(took.length * part)];
  const micros = (ms) => `${(ms * 1000).toFixed(0)} µs`;
  for (const { via, took } of doors) {
    console.log(`${via.padEnd(7)} median ${micros(at(took, 0.5))}, 95 % within ${micros(at(took, 0.95))}`);
  }
  const [socket, http] = doors.map(({ took }) => at(took, 0.5));
  console.log(`http / socket ${(http / socket).toFixed(2)}  (${ROUNDS} probes each, node ${process.version}, ${path.basename(path.dirname(hermes))} build)`);
  doors.forEach(({ client }) => client.close());
  if (socket >= http) process.exitCode = 1;
} finally {
  child.kill('SIGTERM');
  await exited;
  rmSync(home, { recursive: true, force: true });
}
