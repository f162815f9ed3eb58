// The client of hermes backends: everything that a desktop needs, in one import.

export { Client, Hold, Question, Retirement } from './client.mjs';
export { Endpoint, alive, endpointAt, find, findPool, list, runtimeDir, startMarker, survey } from './discover.mjs';
export {
  Aborted,
  BrokenOff,
  Conflict,
  Forbidden,
  Garbled,
  HermesError,
  Invalid,
  NeedsSocket,
  NotFound,
  ProtocolMismatch,
  Retiring,
  TimedOut,
  TooLong,
  TooMany,
  Unauthorized,
  Unavailable,
  UnknownRequest,
  Unreachable,
  Unsafe,
} from './errors.mjs';
export { MAX_FRAME, MAX_HELLO } from './frames.mjs';
export { DEADLINE_MS } from './patience.mjs';
export { Pool } from './pool.mjs';
export { Secret } from './secret.mjs';
export { RECONNECT, backoff, probe, watch } from './watch.mjs';
export { PROTOCOL } from './wire.mjs';
