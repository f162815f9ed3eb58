// Which backend is meant, and the door by which it is asked.

import { CALLS, shownBody } from './calls.mjs';
import { Endpoint, endpointAt, find } from './discover.mjs';
import { Garbled, Invalid, Unreachable } from './errors.mjs';
import { Server } from './http.mjs';
import { Line } from './line.mjs';
import { Secret } from './secret.mjs';
import { Connection } from './socket.mjs';
import { taken } from './wire.mjs';

/** Where a backend is and what it is shown. The token is in it and never printed. */
export class Place {
  #token;

  constructor({ endpoint = null, socket = null, url = null, token }) {
    this.endpoint = endpoint;
    this.socket = socket;
    this.url = url;
    this.#token = token instanceof Secret ? token : new Secret(token);
    this.profile = endpoint?.profile ?? null;
    this.pid = endpoint?.pid ?? null;
    this.generation = endpoint?.generation ?? null;
  }

  get token() {
    return this.#token;
  }
}

/** An endpoint, `{socket}`, `{url, token}`, or what `find` takes. `token` goes before the record's: a control token, say. */
export async function place(target = {}, { token, env } = {}) {
  if (target instanceof Endpoint) return found(target, token);
  const { socket, url } = target;
  const shown = token ?? target.token;
  if (url !== undefined) return new Place({ url, token: shown ?? '' });
  if (socket !== undefined) {
    if (shown !== undefined) return new Place({ socket, token: shown });
    return found(await endpointAt(socket), token);
  }
  return found(await find({ env, ...target }), shown);
}

export function found(endpoint, token) {
  const url = endpoint.port === null ? null : `http://127.0.0.1:${endpoint.port}`;
  return new Place({ endpoint, socket: endpoint.socket, url, token: token ?? endpoint.token });
}

/** The control socket. */
class SocketDoor {
  #welcome = null;

  constructor(connection) {
    this.connection = connection;
    this.name = 'socket';
  }

  async greeted(patience) {
    this.#welcome = await this.connection.welcome(patience);
  }

  get pid() {
    return this.#welcome?.pid ?? null;
  }

  get profile() {
    return this.#welcome?.profile ?? null;
  }

  get generation() {
    return this.#welcome?.generation ?? null;
  }

  close() {
    this.connection.close();
  }
}

/** Loopback HTTP: no handshake, so the first look takes its place. */
class HttpDoor {
  constructor(server) {
    this.server = server;
    this.name = 'http';
    this.pid = null;
    this.profile = null;
    this.generation = null;
  }

  async greeted(patience) {
    const { body, generation } = await this.server.call(CALLS.idle.http(), patience);
    shownBody(CALLS.idle, body);
    this.generation = generation;
  }

  close() {
    this.server.close();
  }
}

/** Opens the door that was asked for; where none was, HTTP stands in for a socket that cannot be opened. */
export async function openDoor(where, via, patience) {
  if (via !== undefined && via !== 'socket' && via !== 'http') throw new Invalid('via is socket or http');
  if (via === 'http' || where.socket === null) return httpDoor(where);
  if (via === 'socket' || where.url === null) return socketDoor(where, patience);
  try {
    return await socketDoor(where, patience);
  } catch (error) {
    if (!(error instanceof Unreachable)) throw error;
    // The token goes to whoever has the port now: only while the process that wrote it down still lives.
    if (!where.endpoint || !(await where.endpoint.isLive())) throw error;
    return httpDoor(where);
  }
}

function httpDoor(where) {
  if (where.url === null) throw new Invalid('no port is known for this backend: use the control socket');
  return new HttpDoor(new Server(where.url, where.token));
}

async function socketDoor(where, patience) {
  if (where.socket === null) throw new Invalid('no control socket is known for this backend');
  return new SocketDoor(await Connection.open(where.socket, where.token, patience));
}

/** The events of a stream, one at a time, each waited for with a deadline. A wait that is given up ends the stream. */
export class EventLine {
  #own;
  #line = new Line();

  constructor(own, request, last) {
    this.#own = own;
    this.generation = null;
    const onEvent = (event, generation) => {
      this.generation = generation;
      this.#line.push(event);
      return last.includes(taken(event)[0]);
    };
    try {
      own.subscribe(request, onEvent, (error) => this.#line.fail(error));
    } catch (error) {
      own.close();
      throw error;
    }
  }

  async next(patience) {
    try {
      return await this.#line.next(patience);
    } catch (error) {
      this.#own.close();
      throw error;
    }
  }

  unexpected(event) {
    this.#own.close();
    return new Garbled(`${taken(event)[0]} is no event of this stream`);
  }
}
