// How a desktop keeps a pool of children: it makes room for the next by proof alone, and ends no work.

import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import process from 'node:process';
import { Client, find, probe, startMarker, watch } from './hermes.mjs';

const LIMIT = 3; // so many at a time
const READY_MS = 20_000;
const ROOM_MS = 30_000; // so long a foreground open waits for room
const LEAVE_MS = 5_000; // from SIGTERM to SIGKILL


const say = (text) => console.log(text);

/** Children of this very process, one a profile. */
export class OwnChildren {
  #residents = new Map(); // least recently used first
  #queue = Promise.resolve(); // one open at a time: two must not make room for each other
  #quitting = new AbortController();

  constructor({ hermes, env }) {
    this.hermes = hermes;
    this.env = env;
  }

  residents() {
    return [...this.#residents.values()];
  }

  open(profile) {
    const opened = this.#queue.then(() => this.#open(profile));
    this.#queue = opened.catch(() => {});
    return opened;
  }

  /** Whoever waits for room is sent away; every child is told to go, and ends its work in order. */
  async quit() {
    this.#quitting.abort();
    await this.#queue;
    await Promise.all(this.residents().map((resident) => this.#stop(resident)));
  }

  async #open(profile) {
    const known = this.#residents.get(profile);
    if (known) {
      this.#residents.delete(profile); // to the end: it is the most recently used now
      this.#residents.set(profile, known);
      return known;
    }
    const patience = AbortSignal.any([AbortSignal.timeout(ROOM_MS), this.#quitting.signal]);
    while (this.#residents.size >= LIMIT) await this.#makeRoom(patience);
    if (this.#quitting.signal.aborted) throw new Error('the desktop is about to quit');
    const resident = await this.#spawn(profile);
    this.#residents.set(profile, resident);
    resident.exited.then(() => this.#residents.get(profile) === resident && this.#residents.delete(profile));
    return resident;
  }

  /** Retires the least recently used backend that proves itself idle; if none does, says why and waits for the first. */
  async #makeRoom(patience) {
    const residents = this.residents();
    const verdicts = await Promise.all(residents.map(({ endpoint }) => probe(endpoint, { deadlineMs: 3_000 })));
    for (const [at, resident] of residents.entries()) {
      if (verdicts[at].idle === true && (await this.#retire(resident))) return;
    }
    say('every backend is busy:');
    for (const resident of residents) await inTheWay(resident);
    const waiting = new AbortController();
    const signal = AbortSignal.any([patience, waiting.signal]);
    try {
      // Whoever becomes idle first, or is gone; nobody, once the patience is over.
      const room = residents.flatMap((resident) => [firstIdle(resident, signal), resident.exited]);
      await Promise.race([Promise.any(room), once(patience, 'abort').then(() => Promise.reject(patience.reason))]);
    } catch {
      throw new Error(`nobody became idle in time (${ROOM_MS / 1000} s): nothing was stopped`);
    } finally {
      waiting.abort();
    }
  }

  /** Prepare, look again, commit, stop. Whatever does not go as it should leaves the backend as it was. */
  async #retire(resident) {
    let client;
    try {
      client = await Client.connect(resident.endpoint, { deadlineMs: 3_000 });
      // Tied: if this process dies now, the backend is open again at once.
      const granted = await client.prepare({ requestId: randomBytes(8).toString('hex'), tied: true });
      if (granted.ok !== true || granted.idle !== true) return false;
      const { idle, generation } = await client.idle();
      const same = generation === resident.endpoint.generation && this.#residents.get(resident.profile) === resident;
      if (!same || idle !== true) {
        await client.cancel(granted.permit);
        return false;
      }
      const { ok, next_due } = await client.commit(granted.permit);
      if (ok !== true) return false;
      say(`retired ${resident.profile}, idle by proof${next_due ? `; its next job is due ${next_due}` : ''}`);
    } catch (error) {
      say(`${resident.profile} is kept: ${error.message}`);
      return false;
    } finally {
      client?.close();
    }
    await this.#stop(resident);
    return true;
  }

  /** Room is there when the process is gone, not when it was told to go. */
  async #stop({ profile, child, exited }) {
    child.kill('SIGTERM');
    const kill = setTimeout(() => child.kill('SIGKILL'), LEAVE_MS);
    const how = await exited;
    clearTimeout(kill);
    this.#residents.delete(profile);
    say(`${profile} has left (${how})`);
  }

  async #spawn(profile) {
    const env = {
      ...this.env,
      HERMES_DESKTOP: '1',
      HERMES_DASHBOARD_SESSION_TOKEN: randomBytes(32).toString('hex'),
      HERMES_PARENT_PID: String(process.pid),
      HERMES_PARENT_START_MARKER: await startMarker(process.pid),
      HERMES_PARENT_NONCE: randomBytes(16).toString('hex'),
    };
    const stdio = ['ignore', 'pipe', 'inherit'];
    const child = spawn(this.hermes, ['--profile', profile, 'serve', '--port', '0'], { env, stdio, detached: true });
    const exited = new Promise((resolve) => {
      child.once('exit', (code, signal) => resolve(signal ?? `exit ${code}`));
      child.once('error', (error) => resolve(error.message));
    });
    const ready = new Promise((resolve) => {
      let out = '';
      child.stdout.on('data', (text) => (out += text).includes('HERMES_BACKEND_READY port=') && resolve());
    });
    const late = AbortSignal.timeout(READY_MS);
    const given = new Promise((_, reject) => late.addEventListener('abort', () => reject(new Error('it is not ready in time'))));
    const ended = exited.then((how) => Promise.reject(new Error(`it ended before it was ready: ${how}`)));
    try {
      await Promise.race([ready, ended, given]);
      return { profile, child, exited, endpoint: await find({ env, pid: child.pid }) };
    } catch (error) {
      if (child.pid) child.kill('SIGKILL');
      throw new Error(`${profile} cannot be opened: ${error.message}`);
    }
  }
}

/** Who keeps a backend from being idle, for how long, what for, and what a person can do about it. */
async function inTheWay({ profile, endpoint }) {
  try {
    const client = await Client.connect(endpoint);
    const [{ reason, entries }, { prompts }] = await Promise.all([client.ledgers(), client.questions()]);
    client.close();
    if (entries.length === 0) say(`  ${profile}: ${reason}`);
    for (const { ledger, id, age_ms, why } of entries) {
      say(`  ${profile}: ${ledger} ${id} for ${(age_ms / 1000).toFixed(1)} s: ${why}`);
    }
    for (const { id, text } of prompts) say(`  ${profile}: asks "${text}": hermesctl --profile ${profile} answer ${id} TEXT`);
  } catch (error) {
    say(`  ${profile}: ${error.message}: counts as busy`);
  }
}

async function firstIdle({ endpoint }, signal) {
  for await (const { idle } of watch(endpoint, { signal })) if (idle === true) return;
}
