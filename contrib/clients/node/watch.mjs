// The verdict of a backend: once whatever happens, and for as long as somebody looks.

import { CALLS, EVENTS, STREAMS, shown, shownBody, verdictBody } from './calls.mjs';
import { Endpoint, endpointAt } from './discover.mjs';
import { found, openDoor, place } from './door.mjs';
import {
  Aborted,
  BrokenOff,
  Forbidden,
  Garbled,
  HermesError,
  Invalid,
  ProtocolMismatch,
  Unauthorized,
  UnknownRequest,
  Unreachable,
  Unsafe,
  unknownReason,
} from './errors.mjs';
import { Line } from './line.mjs';
import { DEADLINE_MS, countdown, pause } from './patience.mjs';
import { taken } from './wire.mjs';

/** A process whose connection broke off is given so long to be gone. */
const DYING_MS = 500;

/**
 * The verdict of one backend, whatever happens: what cannot be had is `{ok: false, idle: null, reason, error}`, which
 * counts as busy. Only the caller's own abort rejects.
 */
export async function probe(target, options = {}) {
  const { deadlineMs = DEADLINE_MS, signal, via } = options;
  const left = countdown(deadlineMs);
  let where = target instanceof Endpoint ? found(target, options.token) : null;
  let door;
  try {
    where ??= await place(target, options);
    door = await openDoor(where, via, { deadlineMs: left(), signal });
    return await verdictBy(door, where, { deadlineMs: left(), signal });
  } catch (error) {
    if (error instanceof Aborted || !(error instanceof HermesError)) throw error;
    return unknown(where, await settled(where, error));
  } finally {
    door?.close();
  }
}

/** Hello and the question go together: one round trip. */
async function verdictBy(door, where, patience) {
  const { profile, pid } = where;
  if (door.name === 'http') {
    const { body, generation } = await door.server.call(CALLS.idle.http({}), patience);
    return { ...shownBody(CALLS.idle, body), profile, pid, generation };
  }
  const { reply, generation } = await door.connection.call(CALLS.idle.request({}), patience);
  const welcome = await door.connection.welcome(patience);
  return { ...shown(CALLS.idle, reply), profile: welcome.profile, pid: welcome.pid, generation };
}

function unknown(where, error) {
  return {
    ok: false,
    idle: null,
    reason: unknownReason(error),
    error: error.message,
    profile: where?.profile ?? null,
    pid: where?.pid ?? null,
    generation: where?.generation ?? null,
  };
}

/** A backend that broke off is gone if its process is, or will be in a moment; else it cannot be told. */
async function settled(where, error) {
  const endpoint = where?.endpoint;
  if (!endpoint || unknownReason(error) !== 'indeterminate') return error;
  const left = countdown(error instanceof BrokenOff ? DYING_MS : 0);
  while (await endpoint.isLive()) {
    if (left() === 0) return error;
    await pause(10);
  }
  return new Unreachable(`the backend with pid ${endpoint.pid} is gone`, { cause: error });
}

// ---------------------------------------------------------------- watching

/** How a watch comes back: so many tries in a row, so far apart at first and at most, each of a random part of that. */
export const RECONNECT = Object.freeze({ attempts: 10, baseMs: 50, capMs: 5_000 });

/** Full jitter: anything from nothing to the whole span, so that many clients do not come back together. */
export function backoff(attempt, { baseMs, capMs } = RECONNECT, random = Math.random) {
  return random() * Math.min(capMs, baseMs * 2 ** attempt);
}

/**
 * Yields the verdict now and at every change, and comes back when the connection ends: by the record that lies in the
 * same place then, so a restarted backend is found with its new token. Meanwhile it yields one verdict with `idle: null`.
 * `generation_changed` says that another process answers than before. Ends by `break`, by the signal (`Aborted`), or with
 * the last error after `reconnect.attempts` tries in a row (0: at the first).
 */
export async function* watch(target, options = {}) {
  yield* watchFrom(await place(target, options), options);
}

/** As `watch`, from a place that is known already. */
export async function* watchFrom(where, { via, token, reconnect = {}, deadlineMs = DEADLINE_MS, signal } = {}) {
  const limits = { ...RECONNECT, ...reconnect };
  let attempt = 0;
  let generation = null;
  let lost = false;
  let here = where;
  for (;;) {
    let failure;
    try {
      for await (const verdict of verdicts(here, { via, deadlineMs, signal })) {
        attempt = 0;
        lost = false;
        const changed = generation !== null && verdict.generation !== generation;
        generation = verdict.generation;
        yield { ...verdict, generation_changed: changed };
      }
      failure = new BrokenOff('the backend has ended the stream');
    } catch (error) {
      if (!(error instanceof HermesError) || isFinal(error, where)) throw error;
      failure = error;
    }
    if (!lost) {
      lost = true;
      yield { ...unknown(here, failure), generation: generation ?? here.generation, generation_changed: false };
    }
    for (;;) {
      if (attempt >= limits.attempts) throw failure;
      await pause(backoff(attempt, limits), signal);
      attempt += 1;
      try {
        here = await again(where, token);
        break;
      } catch (error) {
        if (!(error instanceof HermesError) || isFinal(error, where)) throw error;
        failure = error;
      }
    }
  }
}

/** No later try can mend these: somebody must. A record may bring a new token, and what was given by hand stays wrong. */
function isFinal(error, where) {
  if (error instanceof Unauthorized) return !where.endpoint;
  return FINAL.some((Kind) => error instanceof Kind);
}

const FINAL = [Aborted, Unsafe, ProtocolMismatch, Forbidden, Invalid, UnknownRequest];

/** What is written in the same place now. A target without a record stays what it is. */
async function again(where, token) {
  if (!where.endpoint) return where;
  return found(await endpointAt(where.endpoint.record), token);
}

/** The verdicts of one connection, until it ends. */
async function* verdicts(where, { via, deadlineMs, signal }) {
  const patience = { deadlineMs, signal };
  const door = await openDoor(where, via, patience);
  const line = new Line();
  // A slow reader sees the latest, as the backend itself has it.
  const push = (verdict) => line.replace(verdict);
  const fail = (error) => line.fail(error);
  try {
    if (door.name === 'http') {
      const { profile, pid } = where;
      const onEvent = (body, generation) => push({ ...verdictBody(body), profile, pid, generation });
      await door.server.stream(STREAMS.watch.http({}), { ...patience, onEvent, onEnd: fail });
    } else {
      const { profile, pid } = await door.connection.welcome(patience);
      const onEvent = (event, generation) => {
        if (!event.Verdict) throw new Garbled(`${taken(event)[0]} is no event of a watch`);
        push({ ...EVENTS.Verdict.shown(event.Verdict), profile, pid, generation });
      };
      door.connection.subscribe(STREAMS.watch.request({}), onEvent, fail);
    }
    let first = true;
    for (;;) {
      // The first verdict is due at once; the next comes when something changes, which may be never.
      yield await line.next({ signal, deadlineMs: first ? deadlineMs : null });
      first = false;
    }
  } finally {
    door.close();
  }
}
