// Real children in homes of their own: when a test ends, however it ends, nothing of it is left.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { startMarker } from '../hermes.mjs';

const built = (name) => fileURLToPath(new URL(`../../../../target/debug/${name}`, import.meta.url));
export const HERMES = process.env.HERMES_BIN ?? built('hermes');
export const HERMESCTL = process.env.HERMESCTL_BIN ?? built('hermesctl');

/** The session token of every child here; no output may ever show it. */
export const TOKEN = 'node-session-token-0123456789abcdefghijklmnop';

/** How long anything that should happen soon may take on a loaded machine. */
export const SOON_MS = 20_000;

for (const program of [HERMES, HERMESCTL]) {
  assert.ok(existsSync(program), `${program} is not built: cargo build --bins, or set HERMES_BIN and HERMESCTL_BIN`);
}

/** No file of these tests takes longer, even on a machine that is busy with something else. */
const FILE_LIMIT_MS = 90_000;

const worlds = new Set();

// A file that hangs leaves nothing behind either.
setTimeout(() => {
  console.error(`these tests took longer than ${FILE_LIMIT_MS} ms: given up, ${worlds.size} homes swept`);
  for (const world of worlds) world.sweep();
  process.exit(1);
}, FILE_LIMIT_MS).unref();

/** One user's world: a home, a private runtime directory, and every process that was started in them. */
export class World {
  /** Goes with the test `t`. */
  constructor(t) {
    this.root = mkdtempSync('/tmp/hn');
    this.home = this.#folder('h');
    this.runtime = this.#folder('r');
    this.env = {
      PATH: process.env.PATH,
      HOME: this.#folder('u'),
      HERMES_HOME: this.home,
      HERMES_RUNTIME_DIR: this.runtime,
      HERMES_LOG: 'warn',
    };
    worlds.add(this);
    t.after(() => this.#end());
  }

  #folder(name) {
    const folder = path.join(this.root, name);
    mkdirSync(folder, { mode: 0o700 });
    return folder;
  }

  file(...names) {
    return path.join(this.home, ...names);
  }

  touch(name) {
    writeFileSync(this.file(name), '');
  }

  /** An agent that does what the first word of its prompt says. */
  agent() {
    const file = path.join(this.root, 'agent.sh');
    writeFileSync(file, AGENT);
    return { HERMES_AGENT_COMMAND: `bash '${file}'` };
  }

  /** A job that is due at once and runs until the file `release` is there, in the home or that of a profile. */
  waitingJob(id, ...profile) {
    const cron = this.file(...profile, 'cron');
    mkdirSync(cron, { mode: 0o700, recursive: true });
    mkdirSync(this.file(...profile, 'scripts'), { mode: 0o700, recursive: true });
    writeFileSync(this.file(...profile, 'scripts', 'wait.sh'), 'while [ ! -e "$HERMES_HOME/release" ]; do sleep 0.05; done\n');
    const at = (seconds) => new Date(Date.now() + seconds * 1000).toISOString();
    const job = {
      id, name: id, prompt: '', script: 'wait.sh', no_agent: true,
      schedule: { kind: 'interval', minutes: 60, display: 'every 60m' }, schedule_display: 'every 60m',
      repeat: { times: null, completed: 0 }, enabled: true, state: 'scheduled', created_at: at(-3600), next_run_at: at(-5),
    };
    const staged = path.join(cron, 'jobs.tmp');
    writeFileSync(staged, JSON.stringify({ jobs: [job] }));
    renameSync(staged, path.join(cron, 'jobs.json'));
  }

  /** Starts `hermes serve` and waits for READY. */
  async child({ profile, env = {} } = {}) {
    const args = [...(profile ? ['--profile', profile] : []), 'serve', '--port', '0'];
    const shown = { HERMES_DASHBOARD_SESSION_TOKEN: TOKEN, ...env };
    const { ready, ...child } = await this.#start(args, shown, /HERMES_BACKEND_READY port=(\d+)\n[^]*HERMES_DASHBOARD_READY port=\d+\n/);
    return { ...child, port: Number(ready), url: `http://127.0.0.1:${ready}` };
  }

  /** Starts `hermes pool` and waits for READY. */
  async pool({ max = 3, args = [], env = {} } = {}) {
    const { ready, ...pool } = await this.#start(['pool', '--max', String(max), ...args], env, /HERMES_POOL_READY socket=(.+)\n/);
    return { ...pool, socket: ready };
  }

  async #start(args, env, readiness) {
    const stdio = ['ignore', 'pipe', 'pipe'];
    const child = spawn(HERMES, args, { env: { ...this.env, ...env }, stdio, detached: true });
    let out = '';
    let log = '';
    child.stdout.on('data', (text) => (out += text));
    child.stderr.on('data', (text) => (log += text));
    const exited = new Promise((resolve) => child.once('exit', (code, signal) => resolve({ code, signal })));
    await until(`READY of ${args.join(' ')}`, () => {
      assert.equal(child.exitCode, null, `no READY: ${log}`);
      return readiness.test(out);
    });
    return {
      pid: child.pid,
      ready: out.match(readiness)[1],
      exited,
      log: () => log,
      kill: (signal) => child.kill(signal),
      async end(signal = 'SIGTERM') {
        child.kill(signal);
        return exited;
      },
    };
  }

  /** What `hermesctl ARGS` prints and how it ends. */
  ctl(...args) {
    return new Promise((resolve) => {
      execFile(HERMESCTL, args, { env: this.env, timeout: 30_000 }, (error, stdout, stderr) => {
        resolve({ code: error ? error.code : 0, stdout, stderr });
      });
    });
  }

  /** What `hermesctl ARGS --json` prints. */
  async json(...args) {
    const { stdout, stderr } = await this.ctl(...args, '--json');
    assert.notEqual(stdout, '', `hermesctl ${args.join(' ')} printed nothing: ${stderr}`);
    return JSON.parse(stdout);
  }

  /** A record in the runtime directory, written as a child writes it; of this very process unless told otherwise. */
  async record(name, fields = {}, mode = 0o600) {
    const record = path.join(this.runtime, `${name}.json`);
    const whole = {
      pid: process.pid, start_marker: await startMarker(process.pid), generation: 'fake', profile: name, home: this.home,
      socket: path.join(this.runtime, `${name}.sock`), port: null, token: TOKEN, version: '0', ...fields,
    };
    writeFileSync(record, JSON.stringify(whole), { mode });
    chmodSync(record, mode);
    return record;
  }

  /** Ends what is left of it; true when nothing was. */
  sweep() {
    const pids = processesUnder(this.root);
    pids.forEach(tryKill);
    if (pids.length === 0) rmSync(this.root, { recursive: true, force: true });
    return pids.length === 0;
  }

  async #end() {
    await until(`everything under ${this.root} to be gone`, () => this.sweep());
    worlds.delete(this);
  }
}

const AGENT = `
read -r verb rest
case "$verb" in
say) echo "you said $rest" ;;
wait) while [ ! -e "$HERMES_HOME/$rest" ]; do sleep 0.02; done; echo waited ;;
leave) setsid sleep 300 >/dev/null 2>&1 & echo left ;;
esac
`;

function tryKill(pid) {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It has gone by itself.
  }
}

/** Processes whose environment says that they belong under this root (Linux; elsewhere none can be told). */
function processesUnder(root) {
  if (!existsSync('/proc')) return [];
  const marks = [`HERMES_HOME=${root}/`, `HERMES_RUNTIME_DIR=${root}/`];
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name)).map(Number);
  return pids.filter((pid) => {
    if (pid === process.pid) return false;
    try {
      const environment = readFileSync(`/proc/${pid}/environ`, 'latin1').split('\0');
      return environment.some((entry) => marks.some((mark) => entry.startsWith(mark)));
    } catch {
      return false;
    }
  });
}

/** Waits for a condition; fails naming what never came. */
export async function until(what, holds, deadlineMs = SOON_MS) {
  const end = performance.now() + deadlineMs;
  for (;;) {
    const value = await holds();
    if (value) return value;
    assert.ok(performance.now() < end, `waited in vain for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** A server at a socket path that does to every connection what `converse` says; ends with the test. */
export async function impostor(t, file, converse) {
  const open = new Set();
  const server = net.createServer((socket) => {
    open.add(socket);
    socket.on('error', () => {});
    socket.on('close', () => open.delete(socket));
    converse(socket);
  });
  await new Promise((resolve) => server.listen(file, resolve));
  t.after(() => {
    open.forEach((socket) => socket.destroy());
    server.close();
  });
  return server;
}

/** The same object less what no two answers share. */
export function less(object, ...keys) {
  const kept = Object.entries(object).filter(([key]) => !keys.includes(key));
  return Object.fromEntries(kept);
}

/** Ages, and memory, differ from one look to the next by their nature. */
export function ageless(value) {
  const ages = ['age_ms', 'since_ms', 'expires_in_ms', 'unused_ms', 'waited_ms', 'memory'];
  return JSON.parse(JSON.stringify(value, (key, inner) => (ages.includes(key) ? 'some' : inner)));
}
