// Finding backends by their endpoint records, and believing only what nobody else can have written.
//
// The rules are those of `hermesctl`: the runtime directory is ours, 0700 and no symbolic link; a record in it is ours, a
// plain file, and closed to everybody else; the process that wrote it still lives, by pid and start marker; its socket
// lies beside it. Node cannot ask the kernel who listens on a socket: that it is ours, in a directory that only we can
// write to, is what stands for it. Records of the dead are passed over, and swept by those who can lock.

import { execFile } from 'node:child_process';
import { constants } from 'node:fs';
import { lstat, open, readFile, readdir, realpath } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';
import { Invalid, NotFound, Unreachable, Unsafe } from './errors.mjs';
import { Secret } from './secret.mjs';

/** The longest path that a socket's address takes. */
export const MAX_SOCKET_PATH = 107;

/** A record is a few hundred bytes; a longer file is none of ours. */
const MAX_RECORD = 64 * 1024;

const run = promisify(execFile);

/** Where the runtime directory is, by the environment; nothing is looked at. */
export function runtimeDir(env = process.env) {
  if (env.HERMES_RUNTIME_DIR) return path.resolve(env.HERMES_RUNTIME_DIR);
  if (env.XDG_RUNTIME_DIR) return path.resolve(env.XDG_RUNTIME_DIR, 'hermes');
  return `/tmp/hermes-${process.geteuid()}`;
}

/** What one record says. The token is in it and never printed; JSON of it is what `hermesctl list --json` prints. */
export class Endpoint {
  #token;
  #marker;
  #record;

  constructor(fields, record) {
    this.pid = fields.pid;
    this.profile = fields.profile;
    this.generation = fields.generation;
    this.home = fields.home;
    this.socket = fields.socket;
    this.port = fields.port;
    this.version = fields.version;
    if (fields.kind !== null) this.kind = fields.kind;
    this.#token = new Secret(fields.token);
    this.#marker = fields.start_marker;
    this.#record = record;
    Object.freeze(this);
  }

  get token() {
    return this.#token;
  }

  get startMarker() {
    return this.#marker;
  }

  /** The file that this was read from. */
  get record() {
    return this.#record;
  }

  /** What a person calls it. */
  get name() {
    return this.profile ?? 'default';
  }

  /** Whether the process that wrote the record still lives. */
  isLive() {
    return alive(this.pid, this.#marker);
  }
}

/** What tells a process from a later one of the same pid; null if there is no such process. */
export async function startMarker(pid) {
  if (process.platform === 'linux') {
    const stat = await look(pid);
    return stat && `linux:${stat.started}`;
  }
  try {
    const { stdout } = await run('ps', ['-o', 'lstart=', '-p', String(pid)]);
    return stdout.trim() ? `ps:${stdout.trim()}` : null;
  } catch {
    return null;
  }
}

/** Whether the process with this pid and start marker lives. A zombie is gone. */
export async function alive(pid, marker) {
  if (process.platform === 'linux') {
    const stat = await look(pid);
    return stat !== null && !stat.zombie && `linux:${stat.started}` === marker;
  }
  return (await startMarker(pid)) === marker;
}

async function look(pid) {
  let stat;
  try {
    stat = await readFile(`/proc/${pid}/stat`, 'latin1');
  } catch {
    return null;
  }
  // The name stands in parentheses and may hold anything: the last one ends it.
  const fields = stat.slice(stat.lastIndexOf(')') + 1).trim().split(/\s+/);
  return { zombie: fields[0] === 'Z' || fields[0] === 'X', started: fields[19] };
}

/** Every record of a living process, by name: `endpoints`, and the errors of those that are not believed as `refused`. */
export async function survey({ env, dir = runtimeDir(env) } = {}) {
  const found = { endpoints: [], refused: [] };
  if (!(await checkDir(dir))) return found;
  const names = (await readdir(dir)).filter((name) => name.endsWith('.json')).sort();
  for (const name of names) {
    try {
      const endpoint = await readRecord(path.join(dir, name));
      if (endpoint && (await endpoint.isLive())) found.endpoints.push(endpoint);
    } catch (error) {
      if (!(error instanceof Unsafe)) throw error;
      found.refused.push(error);
    }
  }
  return found;
}

/** Every living child. Pools have records too and are no children. */
export async function list(options) {
  const { endpoints } = await survey(options);
  return endpoints.filter((endpoint) => endpoint.kind === undefined);
}

/** The one child that is meant: by `profile` (`default` has none), by `pid`, by `home`, or the only one there is. */
export async function find({ profile, pid, home, ...options } = {}) {
  const named = { profile, pid, home };
  const { endpoints, refused } = await survey(options);
  const fits = endpoints.filter(
    (endpoint) =>
      endpoint.kind === undefined &&
      (profile === undefined || endpoint.name === profile) &&
      (pid === undefined || endpoint.pid === pid) &&
      (home === undefined || endpoint.home === home),
  );
  if (fits.length === 1) return fits[0];
  const asked = Object.entries(named).filter(([, value]) => value !== undefined);
  const words = asked.map(([key, value]) => `${key} ${value}`).join(', ') || 'this user';
  // It may be behind a record that cannot be believed: then nobody can say that it does not run.
  if (fits.length === 0) throw refused[0] ?? new Unreachable(`no backend runs for ${words}`);
  const pids = fits.map((endpoint) => endpoint.pid).join(', ');
  throw new Invalid(`several backends fit (pids ${pids}): name one by profile or pid`);
}

/** The one pool that is meant: by `pid` or `home`, the only one there is, or that of the home which the environment names. */
export async function findPool({ pid, home, env = process.env, ...options } = {}) {
  const { endpoints } = await survey({ env, ...options });
  const meant = home === undefined ? undefined : await real(home);
  const pools = endpoints.filter(
    (endpoint) =>
      endpoint.kind === 'pool' &&
      (pid === undefined || endpoint.pid === pid) &&
      (meant === undefined || endpoint.home === meant),
  );
  if (pools.length === 0) throw new Unreachable('no pool runs: start one with hermes pool');
  if (pools.length === 1) return pools[0];
  const own = await homeOf(env);
  const ours = pools.filter((pool) => pool.home === own);
  if (ours.length === 1) return ours[0];
  const pids = pools.map((pool) => pool.pid).join(', ');
  throw new Invalid(`several pools fit (pids ${pids}): name one by pid, home or socket`);
}

/** The home that the environment names. */
async function homeOf({ HERMES_HOME, HOME }) {
  const home = HERMES_HOME || (HOME && path.join(HOME, '.hermes'));
  return home ? real(home) : null;
}

/** A home as records have it, without symbolic links; null if it is not there. */
function real(home) {
  return realpath(home).catch(() => null);
}

/** The record beside a socket or under its own name, if its process lives: what is written there now, after a restart too. */
export async function endpointAt(file, { requireLive = true } = {}) {
  const record = file.endsWith('.sock') ? `${file.slice(0, -'.sock'.length)}.json` : file;
  if (!(await checkDir(path.dirname(record)))) throw new Unreachable(`there is no endpoint record ${record}`);
  const endpoint = await readRecord(record);
  if (endpoint === null) throw new Unreachable(`there is no endpoint record ${record}`);
  if (requireLive && !(await endpoint.isLive())) {
    throw new Unreachable(`the backend with pid ${endpoint.pid} is gone`);
  }
  return endpoint;
}

/** Whether the directory is there; throws `Unsafe` if others could have put something into it. */
async function checkDir(dir) {
  const refuse = (why) => {
    const advice = 'set that right, or name another in HERMES_RUNTIME_DIR';
    throw new Unsafe(`the runtime directory ${dir} is refused: ${why}; ${advice}`);
  };
  let handle;
  try {
    // By descriptor and not by path: what is judged is what is used.
    handle = await open(dir, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  } catch (error) {
    if (error.code === 'ENOENT') return false;
    if (error.code === 'EACCES') throw new Unreachable(`the runtime directory ${dir} cannot be opened: permission denied`);
    if (error.code === 'ELOOP' || error.code === 'EMLINK') refuse('it is a symbolic link');
    if (error.code === 'ENOTDIR') refuse('it is no directory, or a symbolic link');
    throw error;
  }
  try {
    const { uid, mode } = await handle.stat();
    if (uid !== process.geteuid()) refuse(`it belongs to user ${uid}`);
    if ((mode & 0o7777) !== 0o700) refuse(`its mode is ${(mode & 0o7777).toString(8)} and must be 700`);
  } finally {
    await handle.close();
  }
  return true;
}

/** A record that is ours alone; null if there is none. Everything else is `Unsafe`. */
async function readRecord(file) {
  const refuse = (why) => {
    throw new Unsafe(`the endpoint record ${file} ${why}: it is ignored`);
  };
  let handle;
  try {
    handle = await open(file, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    if (error.code === 'ENOENT') return null;
    refuse(`cannot be opened (${error.code})`);
  }
  let text;
  try {
    const stat = await handle.stat();
    if (stat.uid !== process.geteuid() || (stat.mode & 0o077) !== 0 || !stat.isFile()) refuse('is not ours alone');
    const bytes = Buffer.alloc(Math.min(stat.size, MAX_RECORD) + 1);
    const { bytesRead } = await handle.read(bytes, 0, bytes.length, 0);
    if (bytesRead > MAX_RECORD) refuse('is too long');
    text = bytes.toString('utf8', 0, bytesRead);
  } finally {
    await handle.close();
  }
  const fields = checked(text) ?? refuse('cannot be read');
  const beside = `${file.slice(0, -'.json'.length)}.sock`;
  if (path.resolve(fields.socket) !== path.resolve(beside)) refuse('names a socket that is not beside it');
  if (Buffer.byteLength(fields.socket) > MAX_SOCKET_PATH) refuse('names a socket whose path is too long');
  return new Endpoint(fields, file);
}

/** The keys of a record, each of its type; null if it is none. Unknown keys are passed over. */
function checked(text) {
  let fields;
  try {
    fields = JSON.parse(text);
  } catch {
    return null;
  }
  if (fields === null || typeof fields !== 'object') return null;
  const { pid, start_marker, generation, profile = null, home, socket, port = null, token, version, kind = null } = fields;
  const isWord = (value) => typeof value === 'string';
  const isWordOrNull = (value) => value === null || isWord(value);
  const isPort = (value) => value === null || (Number.isInteger(value) && value >= 0 && value <= 65_535);
  const good =
    Number.isInteger(pid) && pid > 0 && pid <= 0xffff_ffff &&
    [start_marker, generation, home, socket, token, version].every(isWord) &&
    isWordOrNull(profile) && isWordOrNull(kind) && isPort(port) && path.isAbsolute(socket);
  return good ? { pid, start_marker, generation, profile, home, socket, port, token, version, kind } : null;
}

/** Throws unless the socket is one, and ours alone: nobody else can have bound it. */
export async function checkSocket(file) {
  let stat;
  try {
    stat = await lstat(file);
  } catch (error) {
    if (error.code === 'EACCES') throw new Unreachable(`the control socket ${file} cannot be opened: permission denied`);
    throw new Unreachable(`there is no control socket at ${file}: the backend is gone`);
  }
  if (!stat.isSocket()) throw new Unsafe(`${file} is no socket: it is not believed`);
  if (stat.uid !== process.geteuid() && stat.uid !== 0) {
    throw new Unsafe(`the control socket ${file} belongs to user ${stat.uid}: it is not believed`);
  }
  if (!(await checkDir(path.dirname(file)))) throw new NotFound(`there is no directory for ${file}`);
}
