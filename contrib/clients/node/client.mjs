// What a desktop asks of one backend, by either door.

import process from 'node:process';
import { CALLS, EVENTS, STREAMS, shown, shownBody } from './calls.mjs';
import { startMarker } from './discover.mjs';
import { EventLine, openDoor, place } from './door.mjs';
import { Garbled, Invalid, NeedsSocket } from './errors.mjs';
import { DEADLINE_MS, countdown, patiently } from './patience.mjs';
import { Connection } from './socket.mjs';
import { watchFrom } from './watch.mjs';
import { Request, encode, taken } from './wire.mjs';

/** A backend that can be asked. Every call takes `{deadlineMs, signal}` last; every result says which process gave it. */
export class Client {
  #place;
  #door;
  #options;

  /** Connects and shakes hands: over the control socket, or by HTTP if `via` says so or no socket can be opened. */
  static async connect(target, { via, token, env, deadlineMs = DEADLINE_MS, signal } = {}) {
    const left = countdown(deadlineMs);
    const where = await place(target, { token, env });
    const door = await openDoor(where, via, { deadlineMs: left(), signal });
    try {
      await door.greeted({ deadlineMs: left(), signal });
    } catch (error) {
      door.close();
      throw error;
    }
    return new Client(where, door, { deadlineMs });
  }

  /** Use `Client.connect`. */
  constructor(where, door, options) {
    this.#place = where;
    this.#door = door;
    this.#options = options;
  }

  /** The door in use: `socket` or `http`. */
  get via() {
    return this.#door.name;
  }

  get pid() {
    return this.#door.pid ?? this.#place.pid;
  }

  get profile() {
    return this.#door.profile ?? this.#place.profile;
  }

  /** Of the process that shook hands, or that answered last. */
  get generation() {
    return this.#door.generation ?? this.#place.generation;
  }

  /** Is the process there? */
  health(options) {
    return this.#call('health', {}, options);
  }

  /** The verdict: a snapshot, which is never leave to stop anything. */
  idle(options) {
    return this.#call('idle', {}, options);
  }

  /** Every ledger with its entries and their ages, a page at a time: `next` goes into `after`. */
  ledgers({ after, limit, ...options } = {}) {
    return this.#call('ledgers', { after, limit }, options);
  }

  /** Freezes the backend and gives a permit if it is idle (`ok` true), else says who is in the way (`ok` false). */
  prepare({ requestId, tied, ...options } = {}) {
    // An answer that nobody waits for any more must not keep the backend frozen. With an id of the caller's own, the
    // caller can ask for the same permit again.
    const unwanted = (reply) => {
      if (reply.Prepared && requestId === undefined) {
        this.cancel(reply.Prepared.permit).catch(() => {});
      }
    };
    return this.#call('prepare', { requestId, tied }, { ...options, unwanted });
  }

  /** Makes a permit final: the backend leaves by itself. Asking again changes nothing. */
  commit(permit, options) {
    return this.#call('commit', { permit }, options);
  }

  /** Gives an uncommitted permit back. */
  cancel(permit, options) {
    return this.#call('cancel', { permit }, options);
  }

  /** Becomes the owner of a backend whose parent died: this very process, since the kernel is asked who it is. */
  async adopt(options) {
    const marker = await startMarker(process.pid);
    if (marker === null) throw new Invalid('the start of this process cannot be told');
    return this.#call('adopt', { pid: process.pid, startMarker: marker }, options);
  }

  /** Every open question, as `prompts`. */
  questions(options) {
    return this.#call('questions', {}, options);
  }

  /** Answers a question; null declines. The first answer counts. */
  answer(id, answer, options) {
    return this.#call('answer', { id, answer }, options);
  }

  /** Hands over a process that outlived its work: it no longer counts. */
  releaseProcess(pid, options) {
    return this.#call('releaseProcess', { pid }, options);
  }

  /** Gives a session a prompt; it is on disk when this resolves. */
  submit(session, prompt, options) {
    return this.#call('submit', { session, prompt }, options);
  }

  /** From within a turn: starts a turn of its own, counted as a delegation. */
  delegate(session, prompt, { detached, ...options } = {}) {
    return this.#call('delegate', { session, prompt, detached }, options);
  }

  /** One turn; with `wait`, once it has ended (then there is no deadline unless one is given). */
  async turn(turn, { wait = false, ...options } = {}) {
    if (!wait) return this.#call('turn', { turn }, options);
    const patient = { deadlineMs: null, ...options };
    if (this.via === 'http') return this.#call('turn', { turn, wait }, patient);
    // Answers come in order: on the shared connection everything else would wait behind this one.
    const own = await this.#another(options);
    try {
      const { reply, generation } = await own.call(CALLS.turn.request({ turn, wait }), patient);
      return this.#signed(shown(CALLS.turn, reply), generation);
    } finally {
      own.close();
    }
  }

  /** Every session that has work, and those that had some lately. */
  sessions(options) {
    return this.#call('sessions', {}, options);
  }

  /** Ends the turn that runs in a session. */
  interrupt(session, options) {
    return this.#call('interrupt', { session }, options);
  }

  /** The turns of a session behind `after`, oldest first. */
  log(session, { after, limit, ...options } = {}) {
    return this.#call('log', { session, after, limit }, options);
  }

  /** Keeps the backend busy until `release()`, or until this process ends in whatever way. */
  async hold({ who = 'node', why, ...options }) {
    const request = STREAMS.hold.request({ who, why });
    encode(Request, request);
    if (this.via === 'http') return this.#holdOverHttp({ who, why }, options);
    const own = await this.#another(options);
    try {
      const { reply } = await own.call(request, this.#patience(options));
      if (!reply.Held) throw new Garbled(`${taken(reply)[0]} is no answer to this question`);
      const { number } = reply.Held;
      own.keep();
      return new Hold(number, {
        onEnd: (listener) => own.onEnd(listener),
        async release(patience) {
          try {
            const { reply } = await own.call({ Release: { number } }, patience);
            return reply.Released ?? { ok: false };
          } finally {
            own.close();
          }
        },
      });
    } catch (error) {
      own.close();
      throw error;
    }
  }

  async #holdOverHttp(args, options) {
    let begun;
    let ended;
    const first = new Promise((resolve, reject) => {
      begun = resolve;
      ended = reject;
    });
    first.catch(() => {});
    const listeners = [];
    const left = countdown(this.#patience(options).deadlineMs);
    const stop = await this.#door.server.stream(STREAMS.hold.http(args), {
      ...this.#patience(options),
      onEvent: (body) => begun(EVENTS.Held.body(body).number),
      onEnd(error) {
        ended(error);
        listeners.splice(0).forEach((listener) => listener());
      },
    });
    const number = await patiently({ ...options, deadlineMs: left() }, (resolve, reject) => {
      first.then(resolve, reject);
      return stop;
    });
    return new Hold(number, {
      onEnd: (listener) => listeners.push(listener),
      async release() {
        stop();
        return { ok: true };
      },
    });
  }

  /** Asks a person. Resolves when the question is open; `answer()` of what it gives waits for the answer. */
  async ask({ kind, text, choices, timeoutMs, ...options }) {
    const own = await this.#another(options);
    const events = new EventLine(own, STREAMS.ask.request({ kind, text, choices, timeoutMs }), ['Answered']);
    const patience = this.#patience(options);
    const asked = await events.next(patience);
    if (!asked.Asked) throw events.unexpected(asked);
    return new Question(asked.Asked.id, async (given) => {
      const answered = await events.next({ deadlineMs: null, ...given });
      if (!answered.Answered) throw events.unexpected(answered);
      own.close();
      return this.#signed(EVENTS.Answered.shown(answered.Answered), events.generation);
    }, () => own.close());
  }

  /**
   * Stands in line until the last holder goes, and gets the permit in that very step. `onWaiting` is told who is still in
   * the way. Resolves to the permit and the connection that it lives on: `commit()`, or `cancel()`.
   */
  async retireWhenIdle({ withinMs, requestId, onWaiting, ...options } = {}) {
    const own = await this.#another(options);
    const request = STREAMS.retireWhenIdle.request({ withinMs, requestId });
    const events = new EventLine(own, request, ['Prepared']);
    const left = countdown(options.deadlineMs ?? null);
    try {
      for (;;) {
        const event = await events.next({ signal: options.signal, deadlineMs: left() });
        if (event.Prepared) return this.#retirement(own, EVENTS.Prepared.shown(event.Prepared));
        if (!event.Waiting) throw events.unexpected(event);
        onWaiting?.(this.#signed(EVENTS.Waiting.shown(event.Waiting), events.generation));
      }
    } catch (error) {
      own.close();
      throw error;
    }
  }

  #retirement(own, { permit, expires_in_ms }) {
    const last = (name) => async (options) => {
      try {
        const { reply, generation } = await own.call(CALLS[name].request({ permit }), this.#patience(options));
        return this.#signed(shown(CALLS[name], reply), generation);
      } finally {
        // What was tied to it and not committed goes with it.
        own.close();
      }
    };
    return new Retirement(permit, expires_in_ms, last('commit'), last('cancel'));
  }

  /** The verdict now and at every change, across restarts: see `watch`. */
  watch(options) {
    return watchFrom(this.#place, { via: this.via, ...options });
  }

  /** Ends the connection, and with it what is tied to it. Holds and questions have connections of their own. */
  close() {
    this.#door.close();
  }

  [Symbol.dispose ?? Symbol.for('Symbol.dispose')]() {
    this.close();
  }

  async #call(name, args, { unwanted, ...options } = {}) {
    const call = CALLS[name];
    const request = call.request(args);
    // Checked before either door is tried, so that both refuse the same.
    encode(Request, request);
    const patience = this.#patience(options);
    if (this.via === 'http') {
      if (!call.http) throw new NeedsSocket(`${name} is done over the control socket only`);
      const { body, generation } = await this.#door.server.call(call.http(args), patience);
      return this.#signed(shownBody(call, body), generation);
    }
    const { reply, generation } = await this.#door.connection.call(request, { ...patience, unwanted });
    return this.#signed(shown(call, reply), generation);
  }

  #signed(object, generation) {
    return { ...object, profile: this.profile, pid: this.pid, generation: generation ?? this.generation };
  }

  #patience({ deadlineMs = this.#options.deadlineMs, signal } = {}) {
    return { deadlineMs, signal };
  }

  /** A connection for what would hold up the shared one. */
  async #another(options) {
    if (this.via === 'http') throw new NeedsSocket('this is done over the control socket only');
    return Connection.open(this.#place.socket, this.#place.token, this.#patience(options));
  }
}

/** A lease on a backend: it is busy as long as this lives. */
export class Hold {
  #keeper;
  #released = false;

  constructor(number, keeper) {
    /** Its number among the ledger entries. */
    this.number = number;
    this.#keeper = keeper;
    /** Resolves when it no longer holds: true if it was released, false if the backend or the connection went. */
    this.ended = new Promise((resolve) => keeper.onEnd(() => resolve(this.#released)));
  }

  async release(patience = {}) {
    this.#released = true;
    return this.#keeper.release(patience);
  }
}

/** An open question. */
export class Question {
  #answer;
  #withdraw;

  constructor(id, answer, withdraw) {
    this.id = id;
    this.#answer = answer;
    this.#withdraw = withdraw;
  }

  /** Waits for the answer: `{ok, answer}`, a `Secret`, or null if it was declined. Given up, the question is withdrawn. */
  answer(options = {}) {
    return this.#answer(options);
  }

  withdraw() {
    this.#withdraw();
  }
}

/** A permit on a connection of its own: it is given back when that ends. */
export class Retirement {
  #commit;
  #cancel;

  constructor(permit, expires_in_ms, commit, cancel) {
    this.permit = permit;
    this.expires_in_ms = expires_in_ms;
    this.#commit = commit;
    this.#cancel = cancel;
  }

  commit(options) {
    return this.#commit(options);
  }

  cancel(options) {
    return this.#cancel(options);
  }
}
