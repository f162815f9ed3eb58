// One connection to a control socket: handshake, requests in order, streams.

import net from 'node:net';
import { BrokenOff, Garbled, HermesError, TimedOut, Unreachable, fromFault } from './errors.mjs';
import { checkSocket } from './discover.mjs';
import { Frames, MAX_FRAME, MAX_HELLO, frame } from './frames.mjs';
import { DEADLINE_MS, countdown, patiently } from './patience.mjs';
import { Answer, PROTOCOL, Request, decode, encode, taken } from './wire.mjs';

/** A peer that has begun a frame must end it within this, also where nothing else has a deadline. */
const FRAME_MS = 5_000;

/** A connection that has said Hello. Answers come in the order of the requests: whoever waits stands in a slot. */
export class Connection {
  #socket;
  #frames = new Frames(MAX_FRAME);
  #slots = [];
  #late;
  #ended = null;
  #kept = false;
  #welcome;
  #onEnd = [];

  /** Connects and says Hello; does not wait for the answer to it, so that a request can follow at once. */
  static async open(file, token, { deadlineMs = DEADLINE_MS, signal } = {}) {
    const left = countdown(deadlineMs);
    await checkSocket(file);
    const socket = await patiently({ deadlineMs: left(), signal, what: `${file} took no connection` }, (resolve, reject) => {
      const opening = net.connect({ path: file });
      opening.once('error', (error) => reject(cannotConnect(file, error)));
      opening.once('connect', () => resolve(opening));
      return () => opening.destroy();
    });
    return new Connection(socket, token);
  }

  constructor(socket, token) {
    this.#socket = socket;
    socket.removeAllListeners('error');
    socket.on('error', (error) => this.#end(new BrokenOff('the connection to the backend failed', { cause: error })));
    socket.on('data', (piece) => this.#receive(piece));
    socket.on('close', () => this.#end(new BrokenOff('the backend ended the connection before it had answered')));
    this.#welcome = this.#wait((resolve) => (reply, generation) => {
      const [kind, content] = taken(reply);
      // Whatever else is said to Hello ends the conversation for everybody who stands behind it.
      if (kind === 'Fault') this.#end(fromFault(content));
      else if (kind !== 'Welcome') this.#end(new Garbled(`${kind} is no answer to Hello`));
      else if (content.protocol !== PROTOCOL) this.#end(new Garbled('a welcome of another protocol'));
      else resolve({ ...content, generation });
    });
    // Nobody need ask for it: then the failure shows at the first request.
    this.#welcome.catch(() => {});
    // Hello waits for what is asked first and goes with it, in one piece: a backend that refuses the one closes at once,
    // and writing the other into a closed connection would lose what was answered.
    socket.cork();
    try {
      socket.write(frame(encode(Request, { Hello: { protocol: PROTOCOL, token } }), MAX_HELLO));
    } catch (error) {
      this.#end(error);
      throw error;
    }
  }

  /** Who answered the handshake; rejects if it did not hold. */
  welcome({ deadlineMs, signal } = {}) {
    this.#socket.uncork();
    return patiently({ deadlineMs, signal }, (resolve, reject) => void this.#welcome.then(resolve, reject));
  }

  /** Why the connection is over; null while it is not. */
  get ended() {
    return this.#ended;
  }

  /** What this connection holds is meant: it keeps the process alive from now on. */
  keep() {
    this.#kept = true;
    this.#socket.ref();
  }

  /** Called once, when the connection is over. */
  onEnd(listener) {
    if (this.#ended) queueMicrotask(listener);
    else this.#onEnd.push(listener);
  }

  /**
   * Asks; resolves to `{reply, generation}`. When the wait is given up the answer is still owed, since answers are in
   * order: it goes to `unwanted` then, which may have to give something back.
   */
  call(request, { deadlineMs, signal, unwanted } = {}) {
    return patiently({ deadlineMs, signal }, (resolve, reject) => {
      let wanted = true;
      const answered = this.#ask(request, (done, failed) => (reply, generation) => {
        if (reply.Fault) failed(fromFault(reply.Fault));
        else if (wanted) done({ reply, generation });
        else unwanted?.(reply);
      });
      answered.then(resolve, reject);
      return () => {
        wanted = false;
      };
    });
  }

  /** Asks for a stream. Each event goes to `onEvent(event, generation)`, which says true when it was the last. */
  subscribe(request, onEvent, onFailure) {
    const stream = this.#ask(request, (done, failed) => (reply, generation) => {
      if (reply.Fault) failed(fromFault(reply.Fault));
      else if (!reply.Event) this.#end(new Garbled(`${taken(reply)[0]} is no event`));
      else if (onEvent(reply.Event, generation)) done();
      else return 'more';
    });
    stream.catch(onFailure);
  }

  /** Ends the connection and with it all that it holds. Safe to repeat. */
  close() {
    this.#end(new BrokenOff('the connection was closed'));
  }

  #ask(request, listen) {
    if (this.#ended) return Promise.reject(this.#ended);
    // Encoded first: what cannot be sent must not leave a slot behind.
    const bytes = frame(encode(Request, request));
    const answered = this.#wait(listen);
    this.#socket.write(bytes);
    this.#socket.uncork();
    return answered;
  }

  #wait(listen) {
    return new Promise((resolve, reject) => {
      const take = listen(resolve, reject);
      this.#slots.push({ take, reject });
      this.#socket.ref();
    });
  }

  #receive(piece) {
    let complete = false;
    try {
      for (const payload of this.#frames.push(piece)) {
        complete = true;
        this.#deliver(decode(Answer, payload));
        if (this.#ended) return;
      }
    } catch (error) {
      this.#end(error instanceof HermesError ? error : new Garbled('the answer cannot be understood', { cause: error }));
      return;
    }
    if (complete || !this.#frames.begun) {
      clearTimeout(this.#late);
      this.#late = undefined;
    }
    if (this.#frames.begun) {
      this.#late ??= setTimeout(() => this.#end(new TimedOut('the rest of an answer did not come in time')), FRAME_MS);
    }
  }

  #deliver({ generation, reply }) {
    const slot = this.#slots[0];
    if (!slot) throw new Garbled('an answer to nothing');
    if (slot.take(reply, generation) === 'more') return;
    this.#slots.shift();
    // A connection that nobody waits on does not keep the process alive.
    if (this.#slots.length === 0 && !this.#kept) this.#socket.unref();
  }

  #end(error) {
    if (this.#ended) return;
    this.#ended = error;
    clearTimeout(this.#late);
    this.#socket.destroy();
    for (const { reject } of this.#slots.splice(0)) reject(error);
    for (const listener of this.#onEnd.splice(0)) listener();
  }
}

function cannotConnect(file, error) {
  const why = {
    ENOENT: `there is no control socket at ${file}: the backend is gone`,
    ECONNREFUSED: `nobody listens at ${file}: the backend has died`,
    EACCES: `the control socket ${file} cannot be opened: permission denied`,
  }[error.code];
  return why ? new Unreachable(why, { cause: error }) : new BrokenOff(`${file} took no connection`, { cause: error });
}
