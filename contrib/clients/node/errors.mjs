// What can go wrong, one class a kind. None of these is ever taken for idle.

/** Every error of this client. `kind` is stable and for programs, the message is for people and holds no secret. */
export class HermesError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }

  /** The class's name: what a program may switch on across module copies. */
  get kind() {
    return this.name;
  }

  /** Whether asking the same process the same again can help. */
  get retryHelps() {
    return false;
  }
}

// ---- what a backend says: one class for each kind of fault

/** No token, or a wrong one. */
export class Unauthorized extends HermesError {}
/** A right token that may not do this. */
export class Forbidden extends HermesError {}
/** The peer speaks another protocol; the message has both numbers. */
export class ProtocolMismatch extends HermesError {}
/** The backend is too old to know this request. */
export class UnknownRequest extends HermesError {}
/** A value that cannot be used. */
export class Invalid extends HermesError {}
/** The backend is retiring: open it again, then ask the new one. */
export class Retiring extends HermesError {}
/** No such thing. */
export class NotFound extends HermesError {}
/** The thing is not in a state for this. */
export class Conflict extends HermesError {}

/** The backend could not do it; nothing was accepted. */
export class Unavailable extends HermesError {
  get retryHelps() {
    return true;
  }
}

/** Too many connections, holds or questions. */
export class TooMany extends Unavailable {}

/** A deadline passed, ours or the backend's. */
export class TimedOut extends HermesError {
  get retryHelps() {
    return true;
  }
}

const FAULTS = {
  Unauthorized,
  Forbidden,
  ProtocolMismatch,
  UnknownRequest,
  Invalid,
  Retiring,
  TooMany,
  NotFound,
  Conflict,
  Unavailable,
  TimedOut,
};

/** The error for a fault of the wire. */
export function fromFault({ kind, message }) {
  return new FAULTS[kind](message);
}

// ---- what happens on the way

/** Nobody is there: no record, no socket, nobody who listens. */
export class Unreachable extends HermesError {}

/** The connection ended before the answer had come: whether the request was carried out is not known. */
export class BrokenOff extends HermesError {
  get retryHelps() {
    return true;
  }
}

/** Something answered, and it is nothing that this protocol has. */
export class Garbled extends HermesError {}

/** The caller's AbortSignal. Its reason is the cause. */
export class Aborted extends HermesError {}

/** A runtime directory, record or socket that others could have written: it is not believed. */
export class Unsafe extends HermesError {}

/** Only the control socket has this: HTTP has no connection that lasts, or that tells who is asking. */
export class NeedsSocket extends HermesError {}

/** The message does not fit into a frame; nothing was sent. */
export class TooLong extends HermesError {}

/** `reason` of a verdict that could not be had, as `hermesctl --json` has it. */
export function unknownReason(error) {
  if (error instanceof Unauthorized || error instanceof Forbidden) return 'unauthorized';
  if (error instanceof Unreachable || error instanceof NotFound) return 'unreachable';
  return 'indeterminate';
}
