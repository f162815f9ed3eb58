// A pool of backends: opens a profile, says who is in the way of it, and makes room by proof.

import { CALLS, EVENTS, STREAMS, shown } from './calls.mjs';
import { endpointAt, findPool } from './discover.mjs';
import { EventLine, Place, found } from './door.mjs';
import { Garbled, Invalid, Unavailable } from './errors.mjs';
import { Line } from './line.mjs';
import { DEADLINE_MS, countdown } from './patience.mjs';
import { Connection } from './socket.mjs';
import { Request, encode, taken } from './wire.mjs';

/** A child that has committed leaves within 2 s; the pool says that it is gone, not that it will be. */
const LEAVE_MS = 15_000;

/** A pool that can be asked. Every call takes `{deadlineMs, signal}` last. It has one door, the control socket. */
export class Pool {
  #place;
  #connection;
  #welcome;
  #deadlineMs;

  /** Connects to the one pool that is meant: by `socket`, `pid` or `home`, the only one, or that of HERMES_HOME. */
  static async connect({ env, home, pid, socket, token, deadlineMs = DEADLINE_MS, signal } = {}) {
    const left = countdown(deadlineMs);
    const where = await place({ env, home, pid, socket, token });
    const connection = await Connection.open(where.socket, where.token, { deadlineMs: left(), signal });
    try {
      const welcome = await connection.welcome({ deadlineMs: left(), signal });
      return new Pool(where, connection, welcome, deadlineMs);
    } catch (error) {
      connection.close();
      throw error;
    }
  }

  /** Use `Pool.connect`. */
  constructor(where, connection, welcome, deadlineMs) {
    this.#place = where;
    this.#connection = connection;
    this.#welcome = welcome;
    this.#deadlineMs = deadlineMs;
  }

  get pid() {
    return this.#welcome.pid;
  }

  get generation() {
    return this.#welcome.generation;
  }

  /**
   * Has the backend of a profile up; resolves to its `Endpoint`, for `Client.connect`. While it waits for room, `onWaiting`
   * is told the report: its slots are in the way. Nobody is stopped without proof, so there is no deadline unless one is
   * given; giving up, by `deadlineMs` or the signal, gives the place in the queue up. `timeoutMs` is the pool's own
   * patience, whose fault names who was in the way.
   */
  async open(profile, { background, timeoutMs, onWaiting, deadlineMs = null, signal } = {}) {
    const request = STREAMS.open.request({ profile, background, timeoutMs });
    encode(Request, request);
    const left = countdown(deadlineMs);
    const own = await this.#another({ deadlineMs: Math.min(left(), this.#deadlineMs ?? Infinity), signal });
    const events = new EventLine(own, request, ['Opened']);
    try {
      for (;;) {
        const event = await events.next({ signal, deadlineMs: left(), what: `${profile} was not open` });
        if (event.Opened) return await recordOf(event.Opened);
        if (!event.Pool) throw events.unexpected(event);
        onWaiting?.(this.#signed(EVENTS.Pool.shown(event.Pool), events.generation));
      }
    } finally {
      own.close();
    }
  }

  /** Retires the backend of a profile if it proves idle, else `Conflict`; resolves when its process is gone. */
  async close(profile, { deadlineMs = LEAVE_MS, signal } = {}) {
    const request = CALLS.close.request({ profile });
    encode(Request, request);
    const left = countdown(deadlineMs);
    // It lasts as long as the child takes to leave: on the shared connection everything else would wait behind it.
    const own = await this.#another({ deadlineMs: left(), signal });
    try {
      const { reply } = await own.call(request, { deadlineMs: left(), signal });
      return { ...shown(CALLS.close, reply), profile };
    } finally {
      own.close();
    }
  }

  /** Every slot, who holds it and why, who waits, and what is due. */
  report(options) {
    return this.#call('report', {}, options);
  }

  /** The report now and at every change; a slow reader sees the latest. Ends by `break`, by the signal, or with the pool. */
  async *watch({ deadlineMs = this.#deadlineMs, signal } = {}) {
    const own = await this.#another({ deadlineMs, signal });
    const line = new Line();
    const onEvent = (event, generation) => {
      if (!event.Pool) throw new Garbled(`${taken(event)[0]} is no event of a watch`);
      line.replace(this.#signed(EVENTS.Pool.shown(event.Pool), generation));
    };
    try {
      own.subscribe(STREAMS.watchPool.request(), onEvent, (error) => line.fail(error));
      // The first is due at once; the next comes when something changes, which may be never.
      yield await line.next({ deadlineMs, signal });
      for (;;) yield await line.next({ deadlineMs: null, signal });
    } finally {
      own.close();
    }
  }

  /** Changes the limits; what is not given stays. Nobody is stopped without proof for that. Resolves to the report. */
  limit({ max, memoryBudget, ...options } = {}) {
    return this.#call('limit', { max, memoryBudget }, options);
  }

  /** Says that somebody uses a profile: it is not the next to make room. `ok` false: it is not up. */
  touch(profile, options) {
    return this.#call('touch', { profile }, options);
  }

  /** Ends the connection. The pool and its children live on; streams have connections of their own. */
  end() {
    this.#connection.close();
  }

  [Symbol.dispose ?? Symbol.for('Symbol.dispose')]() {
    this.end();
  }

  async #call(name, args, { deadlineMs = this.#deadlineMs, signal } = {}) {
    const { reply, generation } = await this.#connection.call(CALLS[name].request(args), { deadlineMs, signal });
    return this.#signed(shown(CALLS[name], reply), generation);
  }

  #signed(object, generation) {
    return { ...object, profile: this.#welcome.profile, pid: this.pid, generation: generation ?? this.generation };
  }

  #another(patience) {
    return Connection.open(this.#place.socket, this.#place.token, patience);
  }
}

async function place({ env, home, pid, socket, token }) {
  if (socket !== undefined && token !== undefined) return new Place({ socket, token });
  const endpoint = socket === undefined ? await findPool({ env, home, pid }) : await endpointAt(socket);
  if (endpoint.kind !== 'pool') throw new Invalid(`the process with pid ${endpoint.pid} is a backend and no pool`);
  return found(endpoint, token);
}

/** The record of the child that the pool has opened, if that very child wrote what lies there now. */
async function recordOf({ pid, start_marker, generation, socket }) {
  const endpoint = await endpointAt(socket);
  const same = endpoint.pid === pid && endpoint.generation === generation && endpoint.startMarker === start_marker;
  if (!same || endpoint.kind !== undefined) {
    throw new Unavailable(`the backend with pid ${pid} was replaced as soon as it was open: open it again`);
  }
  return endpoint;
}
