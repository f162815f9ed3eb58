// One backend by loopback HTTP: requests over kept connections, and streams of server-sent events.

import http from 'node:http';
import {
  BrokenOff,
  Conflict,
  Forbidden,
  Garbled,
  Invalid,
  NotFound,
  Retiring,
  TimedOut,
  TooLong,
  Unauthorized,
  Unavailable,
  UnknownRequest,
  Unreachable,
  fromFault,
} from './errors.mjs';
import { patiently } from './patience.mjs';
import { FaultKind, snake } from './wire.mjs';

/** A body that is sent has at most so many bytes. */
export const MAX_BODY = 64 * 1024;

/** An answer, and an event, has at most so many bytes. */
const MAX_ANSWER = 1024 * 1024;

const UNREACHABLE = new Set(['ECONNREFUSED', 'ENOENT', 'EHOSTUNREACH', 'ENETUNREACH', 'ENOTFOUND', 'EADDRNOTAVAIL']);

/** A server that speaks the HTTP contract. */
export class Server {
  #token;
  #agent = new http.Agent({ keepAlive: true, maxSockets: 16 });
  #base;
  #streams = new Set();

  /** At `url`, such as `http://127.0.0.1:9119`. */
  constructor(url, token) {
    this.#base = address(url);
    this.#token = token;
  }

  get url() {
    return `http://${this.#base.host}`;
  }

  /** Asks; resolves to `{status, body, generation}` for status 200, else rejects with the class that the status stands for. */
  async call({ method, path, body }, options) {
    try {
      return await this.#fetch(method, path, body, options);
    } catch (error) {
      // A kept connection may have been closed just as it was used again; a look can be taken twice.
      if (error.stale && method === 'GET') return this.#fetch(method, path, body, options);
      throw error;
    }
  }

  #fetch(method, path, body, options) {
    return patiently(options, (resolve, reject) => {
      const { request, responded } = this.#request(method, path, body, reject);
      responded.then((response) => {
        read(response).then((text) => {
          const generation = response.headers['x-hermes-generation'] ?? null;
          const json = parsed(text);
          if (response.statusCode === 200 && json !== null) resolve({ body: json, generation });
          else reject(refusal(response, json));
        }, reject);
      });
      return () => request.destroy();
    });
  }

  /**
   * Subscribes; resolves when the stream has begun. Each event goes to `onEvent(json, generation)`, the end to `onEnd`,
   * once. Gives back what ends it.
   */
  stream({ method, path, body }, { onEvent, onEnd, ...options }) {
    return patiently(options, (resolve, reject) => {
      const { request, responded } = this.#request(method, path, body, reject);
      responded.then((response) => {
        if (!String(response.headers['content-type']).startsWith('text/event-stream')) {
          return read(response).then((text) => reject(refusal(response, parsed(text))), reject);
        }
        const generation = response.headers['x-hermes-generation'] ?? null;
        const stop = () => {
          this.#streams.delete(stop);
          request.destroy();
        };
        let over = false;
        const end = (error) => {
          if (over) return;
          over = true;
          stop();
          onEnd(error);
        };
        this.#streams.add(stop);
        follow(response, (json) => onEvent(json, generation), end);
        resolve(stop);
      });
      return () => request.destroy();
    });
  }

  close() {
    for (const stop of this.#streams) stop();
    this.#agent.destroy();
  }

  #request(method, path, body, reject) {
    const bytes = body === undefined ? undefined : Buffer.from(JSON.stringify(body));
    if (bytes && bytes.length > MAX_BODY) throw new TooLong(`a body has at most ${MAX_BODY} bytes; this one has ${bytes.length}`);
    const headers = { 'x-hermes-session-token': this.#token.expose() };
    if (bytes) Object.assign(headers, { 'content-type': 'application/json', 'content-length': bytes.length });
    const { hostname, port, prefix } = this.#base;
    let request;
    try {
      request = http.request({ agent: this.#agent, host: hostname, port, method, path: prefix + path, headers });
    } catch (error) {
      // Node's message names the header and not what is in it; the error object is not passed on all the same.
      throw new Invalid(`the token or address cannot stand in a request (${error.code})`);
    }
    request.on('error', (error) => reject(this.#failure(error, request.reusedSocket)));
    const responded = new Promise((resolve) => request.once('response', resolve));
    request.end(bytes);
    return { request, responded };
  }

  #failure(error, reused) {
    if (UNREACHABLE.has(error.code)) {
      return new Unreachable(`nothing answers at ${this.url}: ${error.code}`, { cause: error });
    }
    if (String(error.code).startsWith('HPE_')) return new Garbled(`${this.url} does not answer in HTTP`);
    const failure = new BrokenOff(`${this.url} broke off: ${error.code ?? 'no reason is given'}`, { cause: error });
    if (reused) Object.defineProperty(failure, 'stale', { value: true });
    return failure;
  }
}

function address(given) {
  let url;
  try {
    url = new URL(given);
  } catch {
    throw new Invalid('the url cannot be used: give it as http://HOST:PORT');
  }
  if (url.protocol !== 'http:') throw new Invalid(`${url.protocol} is not spoken here; a child listens on loopback, by http:`);
  if (url.username || url.password) throw new Invalid('the url must not carry a user or password');
  return {
    host: url.host,
    hostname: url.hostname.replace(/^\[|\]$/g, ''),
    port: url.port || 80,
    prefix: url.pathname.replace(/\/+$/, ''),
  };
}

function read(response) {
  return new Promise((resolve, reject) => {
    const pieces = [];
    let length = 0;
    response.on('data', (piece) => {
      length += piece.length;
      if (length > MAX_ANSWER) {
        response.destroy();
        reject(new Garbled(`an answer of more than ${MAX_ANSWER} bytes`));
      }
      pieces.push(piece);
    });
    response.once('end', () => resolve(Buffer.concat(pieces).toString('utf8')));
    response.once('error', (error) => reject(new BrokenOff('the answer broke off', { cause: error })));
    response.once('aborted', () => reject(new BrokenOff('the answer broke off')));
  });
}

/** An object, or null: no answer of the contract is anything else. */
function parsed(text) {
  try {
    const json = JSON.parse(text);
    return json !== null && typeof json === 'object' && !Array.isArray(json) ? json : null;
  } catch {
    return null;
  }
}

/** What a status means where no header says more: an older backend, or another kind of server. */
const STATUS = {
  400: Invalid,
  401: Unauthorized,
  403: Forbidden,
  404: NotFound,
  405: UnknownRequest,
  408: TimedOut,
  409: Conflict,
  413: Invalid,
  503: Unavailable,
  504: TimedOut,
};

function refusal({ statusCode: status, headers }, json) {
  const detail = typeof json?.detail === 'string' ? json.detail : `the server answered ${status}`;
  const kind = FaultKind.names.find((name) => snake(name) === headers['x-hermes-fault']);
  if (kind !== undefined && status >= 400) return fromFault({ kind, message: detail });
  if (status === 503 && json?.retiring === true) return new Retiring(detail);
  // The path itself is unknown: an older backend, or another kind of server.
  if (status === 404 && (detail === 'Not Found' || json?.detail === undefined)) return new UnknownRequest(detail);
  const Kind = STATUS[status];
  return Kind ? new Kind(detail) : new Garbled(`the server answered ${status}, which is no answer to this`);
}

/** The events of a stream, one `data:` line each; a fault ends it. */
function follow(response, onEvent, onEnd) {
  let pending = '';
  response.setEncoding('utf8');
  response.on('data', (piece) => {
    pending += piece;
    const events = pending.split('\n\n');
    pending = events.pop();
    if (pending.length > MAX_ANSWER) return onEnd(new Garbled('an event is too long'));
    for (const event of events) {
      const lines = event.split('\n');
      const data = lines.find((line) => line.startsWith('data: '))?.slice('data: '.length);
      if (data === undefined) continue;
      const json = parsed(data);
      if (json === null) return onEnd(new Garbled('an event is no JSON object'));
      if (lines.includes('event: fault')) {
        return onEnd(new (json.retiring === true ? Retiring : Unavailable)(String(json.detail)));
      }
      try {
        onEvent(json);
      } catch (error) {
        return onEnd(error);
      }
    }
  });
  for (const end of ['end', 'close', 'error', 'aborted']) {
    response.once(end, () => onEnd(new BrokenOff('the server has ended the stream')));
  }
}
