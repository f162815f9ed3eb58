// The package: types for everything it exports, nothing it depends on, and an example that runs.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import * as hermes from '../hermes.mjs';
import { HERMES } from './support.mjs';

const here = new URL('../', import.meta.url);
const source = (name) => readFileSync(new URL(name, here), 'utf8');

test('everything that is exported has its type', () => {
  const types = source('hermes.d.ts');
  const typed = [...types.matchAll(/^export (?:class|function|const) (\w+)/gm)].map(([, name]) => name);
  assert.deepEqual(typed.sort(), Object.keys(hermes).sort());
  for (const name of ['Client', 'Endpoint', 'Hold', 'Pool', 'Question', 'Retirement', 'Secret']) {
    const block = types.slice(types.indexOf(`export class ${name} {`)).split('\n}\n')[0];
    const members = Object.getOwnPropertyNames(hermes[name].prototype).filter((member) => member !== 'constructor');
    const untyped = members.filter((member) => !new RegExp(`\\b${member}[?:(]`).test(block));
    assert.deepEqual(untyped, [], name);
  }
});

test('nothing is imported but Node itself and files beside', () => {
  assert.equal(JSON.parse(source('package.json')).dependencies, undefined);
  for (const name of readdirSync(here).filter((file) => file.endsWith('.mjs'))) {
    const from = [...source(name).matchAll(/\bfrom '([^']+)'/g)].map(([, module]) => module);
    assert.deepEqual(from.filter((module) => !/^(node:|\.\/)/.test(module)), [], name);
  }
});

/** Runs the example; `watched(out, running)` sees everything that it has printed so far. */
async function example(t, mode, watched = () => {}) {
  const tmp = mkdtempSync('/tmp/hx');
  t.after(() => rmSync(tmp, { recursive: true, force: true }));
  const file = fileURLToPath(new URL('example-desktop.mjs', here));
  const env = { PATH: process.env.PATH, HOME: tmp, TMPDIR: tmp };
  const running = execFile(process.execPath, [file, mode, '--hermes', HERMES], { env, timeout: 40_000 });
  running.stdin.end();
  let out = '';
  const see = (text) => watched((out += text), running);
  running.stdout.on('data', see);
  running.stderr.on('data', see);
  const [code] = await once(running, 'close');
  assert.equal(code, 0, out);
  const pids = [...out.matchAll(/is open, pid (\d+)/g)].map(([, pid]) => Number(pid));
  for (const pid of pids) assert.equal(await hermes.startMarker(pid), null, `pid ${pid} is left:\n${out}`);
  assert.deepEqual(readdirSync(tmp), []);
  return { out, pids };
}

test('the example desktop makes room by proof, says who is in the way, and leaves nobody behind', async (t) => {
  const { out, pids } = await example(t, '--children');
  const seen = [
    /> open dan\nretired ann, idle by proof\nann has left \(exit 0\)\ndan is open, pid \d+\n/,
    /> open eve\nevery backend is busy:\n {2}bob: session demo for \d+\.\d s: (prompt queued|turn running)\n/,
    / {2}cyd: hold backup for \d+\.\d s: copying files\n/,
    / {2}dan: asks "May I delete it\?": hermesctl --profile dan answer srq-[0-9a-f]{12} TEXT\n/,
    /retired bob, idle by proof\nbob has left \(exit 0\)\neve is open, pid \d+\n/,
    / {2}eve: idle\n> quit\n/,
  ];
  for (const part of seen) assert.match(out, part);
  assert.equal(pids.length, 5);
});

test('the same demo on a pool: it makes room, says who is in the way, and goes with the desktop', async (t) => {
  const { out, pids } = await example(t, '--pool');
  const seen = [
    /> open dan\ndan is open, pid \d+\n/,
    / {2}bob: session:demo\n {2}cyd: hold:backup\n {2}dan: awaiting_human_input\n/,
    /> open eve\nevery backend is busy, and in the way of eve:\n {2}bob: session demo for \d+\.\d s: /,
    / {2}cyd: hold backup for \d+\.\d s: copying files\n/,
    / {2}dan: answer it: hermesctl --profile dan answer srq-[0-9a-f]{12} TEXT\n/,
    / {2}cyd: hold:backup\n {2}dan: awaiting_human_input\n {2}eve: idle\n> quit\nthe pool has left \(exit 0\)\n$/,
  ];
  for (const part of seen) assert.match(out, part);
  assert.equal(pids.length, 5);
});

test('the example desktop that is told to go while it waits for a pool gives up its place', async (t) => {
  let told = false;
  const { out, pids } = await example(t, '--pool', (out, running) => {
    if (!told && out.includes('dan: answer it')) told = running.kill('SIGINT');
  });
  assert.equal(pids.length, 4, out);
  assert.match(out, /the call was aborted\n[^]*the pool has left \(exit 0\)\n$/);
});

test('the example desktop that is told to go while it waits for room goes in order', async (t) => {
  let told = false;
  const { out, pids } = await example(t, '--children', (out, running) => {
    if (!told && out.includes('dan: asks')) told = running.kill('SIGINT');
  });
  assert.equal(pids.length, 4, out);
  assert.match(out, /bob has left \(exit 0\)/);
  assert.doesNotMatch(out, /retired bob/);
});
