// How a desktop lets a pool keep its children: it asks to open, says who is in the way, and stops the pool that it started.

import { spawn } from 'node:child_process';
import process from 'node:process';
import { Pool, Unreachable, find } from './hermes.mjs';

const LIMIT = 3; // so many at a time
const READY_MS = 10_000;
const ROOM_MS = 30_000; // so long a foreground open waits for room
const DRAIN = '2s'; // so long the pool waits for the busy once it is told to go

const say = (text) => console.log(text);

/** The children of a pool: the one that runs for this home already, or one of our own. */
export class PoolChildren {
  #pool;
  #started = null; // the process, if it is ours to stop
  #quitting = new AbortController();
  #left;

  constructor({ hermes, env }) {
    this.hermes = hermes;
    this.env = env;
  }

  async residents() {
    const { slots } = await (await this.#ready()).report();
    const ready = slots.filter(({ state }) => state === 'ready');
    return Promise.all(ready.map(async ({ profile, pid }) => ({ profile, endpoint: await find({ env: this.env, pid }) })));
  }

  async open(profile) {
    const pool = await this.#ready();
    const onWaiting = teller(profile);
    return { profile, endpoint: await pool.open(profile, { timeoutMs: ROOM_MS, onWaiting, signal: this.#quitting.signal }) };
  }

  /** Whoever waits for room gives up; a pool of our own retires the idle, gives the busy a moment, and ends. */
  quit() {
    // Once: told a second time to go, the pool would not wait for the busy at all.
    this.#left ??= this.#quit();
    return this.#left;
  }

  async #quit() {
    this.#quitting.abort(new Error('the desktop is about to quit'));
    const pool = await this.#pool?.catch(() => null);
    pool?.end();
    if (!this.#started) return;
    const { child, exited } = this.#started;
    child.kill('SIGTERM');
    say(`the pool has left (${await exited})`);
  }

  async #ready() {
    this.#quitting.signal.throwIfAborted();
    this.#pool ??= Pool.connect({ env: this.env, home: this.env.HERMES_HOME }).catch((error) => {
      if (!(error instanceof Unreachable)) throw error;
      return this.#start();
    });
    return this.#pool;
  }

  async #start() {
    const args = ['pool', '--max', String(LIMIT), '--drain', DRAIN];
    // Detached: Ctrl-C is for the desktop, which tells the pool.
    const child = spawn(this.hermes, args, { env: this.env, stdio: ['ignore', 'pipe', 'inherit'], detached: true });
    const exited = new Promise((resolve) => {
      child.once('exit', (code, signal) => resolve(signal ?? `exit ${code}`));
      child.once('error', (error) => resolve(error.message));
    });
    this.#started = { child, exited };
    const ready = new Promise((resolve) => {
      let out = '';
      child.stdout.on('data', (text) => {
        const line = (out += text).match(/HERMES_POOL_READY socket=(.+)\n/);
        if (line) resolve(line[1]);
      });
    });
    const late = AbortSignal.timeout(READY_MS);
    const given = new Promise((_, reject) => late.addEventListener('abort', () => reject(new Error('the pool is not ready in time'))));
    const ended = exited.then((how) => Promise.reject(new Error(`the pool ended before it was ready: ${how}`)));
    return Pool.connect({ env: this.env, socket: await Promise.race([ready, ended, given]) });
  }
}

/** Says who is in the way, once for as long as it is the same work: a report comes at every change, and ages are none. */
function teller(profile) {
  let told = '';
  return ({ slots }) => {
    // While one leaves or comes up, nobody is in the way.
    if (slots.some(({ state, idle }) => state !== 'ready' || idle === true)) return;
    const work = JSON.stringify(slots.map((slot) => [slot.profile, slot.holders.map(({ id }) => id)]));
    if (work === told) return;
    told = work;
    say(`every backend is busy, and in the way of ${profile}:`);
    slots.forEach(inTheWay);
  };
}

function inTheWay({ profile, reason, holders }) {
  if (holders.length === 0) say(`  ${profile}: ${reason}`);
  for (const { ledger, id, age_ms, why } of holders) {
    say(`  ${profile}: ${ledger} ${id} for ${(age_ms / 1000).toFixed(1)} s: ${why}`);
    if (ledger === 'human_input') say(`  ${profile}: answer it: hermesctl --profile ${profile} answer ${id} TEXT`);
  }
}
