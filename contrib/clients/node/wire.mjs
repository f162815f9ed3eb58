// The payload format (bincode 2, standard configuration) and every message, as tables.
//
// A message is added by one row at the end of `Request`, `Reply` or `Event`: rows are never moved, removed or changed,
// since a variant's place is its number. Values look as in contrib/vectors.json: an enum is `"Name"`, or `{Name: …}`.

import { Buffer } from 'node:buffer';
import { Garbled, Invalid } from './errors.mjs';
import { exposed } from './secret.mjs';

/** The number of this protocol; it is not the version of anything. */
export const PROTOCOL = 1;

// ---------------------------------------------------------------- bytes

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  take(count) {
    // A length is only a claim: nothing is allocated for what is not there.
    if (count > this.bytes.length - this.at) throw new Garbled('the message ends in the middle');
    const taken = this.bytes.subarray(this.at, this.at + count);
    this.at += count;
    return taken;
  }

  byte() {
    return this.take(1)[0];
  }

  /** A whole number of at most `width` bytes. What no double holds exactly comes as a BigInt. */
  varint(width) {
    const first = this.byte();
    if (first < 251) return first;
    const size = { 251: 2, 252: 4, 253: 8 }[first];
    if (size === undefined || size > width) throw new Garbled(`no whole number of ${width} bytes begins with ${first}`);
    const bytes = this.take(size);
    if (size === 2) return bytes.readUInt16LE();
    if (size === 4) return bytes.readUInt32LE();
    const number = bytes.readBigUInt64LE();
    return number <= Number.MAX_SAFE_INTEGER ? Number(number) : number;
  }

  length() {
    const length = this.varint(8);
    if (length > this.bytes.length - this.at) throw new Garbled(`a length of ${length}, which no message has`);
    return length;
  }
}

class Writer {
  #parts = [];

  byte(byte) {
    this.#parts.push(Buffer.from([byte]));
  }

  bytes(bytes) {
    this.#parts.push(bytes);
  }

  varint(number) {
    const part = (size, tag, write) => {
      const bytes = Buffer.alloc(1 + size);
      bytes[0] = tag;
      write(bytes);
      this.#parts.push(bytes);
    };
    if (number < 251) this.byte(Number(number));
    else if (number <= 0xffff) part(2, 251, (bytes) => bytes.writeUInt16LE(Number(number), 1));
    else if (number <= 0xffff_ffff) part(4, 252, (bytes) => bytes.writeUInt32LE(Number(number), 1));
    else part(8, 253, (bytes) => bytes.writeBigUInt64LE(BigInt(number), 1));
  }

  finish() {
    return Buffer.concat(this.#parts);
  }
}

// ---------------------------------------------------------------- types
//
// A type writes a value, reads one, and checks one that came as JSON over HTTP (`view`), where enums without fields have
// small names with underscores. What a view gives is the same value that `read` would.

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

function bad(what, value) {
  // The value itself may be a secret: only its type is told.
  return new Invalid(`${what} is expected, and this is ${value === null ? 'null' : typeof value}`);
}

function whole(width) {
  const last = 2n ** BigInt(8 * width) - 1n;
  const isWhole = (value) => typeof value === 'bigint' || Number.isSafeInteger(value);
  const fits = (value) => isWhole(value) && value >= 0 && BigInt(value) <= last;
  return {
    write(writer, value) {
      if (!fits(value)) throw bad(`a whole number from 0 to 2^${8 * width} - 1`, value);
      writer.varint(value);
    },
    read: (reader) => reader.varint(width),
    view(value) {
      // JSON.parse has made a double of it already: one too large to be exact is still a number of this type.
      if (!Number.isInteger(value) || value < 0 || value > Number(last)) throw new Garbled('no whole number');
      return value;
    },
  };
}

export const u16 = whole(2);
export const u32 = whole(4);
export const u64 = whole(8);

export const bool = {
  write(writer, value) {
    if (typeof value !== 'boolean') throw bad('true or false', value);
    writer.byte(value ? 1 : 0);
  },
  read(reader) {
    const byte = reader.byte();
    if (byte > 1) throw new Garbled(`${byte} is neither true nor false`);
    return byte === 1;
  },
  view(value) {
    if (typeof value !== 'boolean') throw new Garbled('neither true nor false');
    return value;
  },
};

export const text = {
  write(writer, value) {
    const string = exposed(value);
    if (typeof string !== 'string') throw bad('a string', value);
    // A lone surrogate has no UTF-8, and Buffer would silently put something else in its place.
    if (!string.isWellFormed()) throw new Invalid('the text is no well-formed Unicode');
    const bytes = Buffer.from(string, 'utf8');
    writer.varint(bytes.length);
    writer.bytes(bytes);
  },
  read(reader) {
    const bytes = reader.take(reader.length());
    try {
      return utf8.decode(bytes);
    } catch {
      throw new Garbled('a text is not UTF-8');
    }
  },
  view(value) {
    if (typeof value !== 'string') throw new Garbled('no text');
    return value;
  },
};

export function optional(type) {
  return {
    write(writer, value) {
      const none = value === null || value === undefined;
      writer.byte(none ? 0 : 1);
      if (!none) type.write(writer, value);
    },
    read(reader) {
      const byte = reader.byte();
      if (byte > 1) throw new Garbled(`${byte} begins no optional value`);
      return byte === 1 ? type.read(reader) : null;
    },
    view: (value) => (value === null || value === undefined ? null : type.view(value)),
  };
}

export function list(type) {
  return {
    write(writer, values) {
      if (!Array.isArray(values)) throw bad('a list', values);
      writer.varint(values.length);
      for (const value of values) type.write(writer, value);
    },
    read(reader) {
      const length = reader.length();
      const values = [];
      for (let at = 0; at < length; at += 1) values.push(type.read(reader));
      return values;
    },
    view(values) {
      if (!Array.isArray(values)) throw new Garbled('no list');
      return values.map((value) => type.view(value));
    },
  };
}

export function struct(fields) {
  const rows = Object.entries(fields);
  return {
    write(writer, value) {
      if (value === null || typeof value !== 'object') throw bad('an object', value);
      for (const [name, type] of rows) type.write(writer, value[name]);
    },
    read: (reader) => Object.fromEntries(rows.map(([name, type]) => [name, type.read(reader)])),
    view(value) {
      if (value === null || typeof value !== 'object' || Array.isArray(value)) throw new Garbled('no object');
      return Object.fromEntries(rows.map(([name, type]) => [name, type.view(value[name])]));
    },
  };
}

/** An enum: rows of a name alone, a name and its fields, or a name and the one type in it. The place is the number. */
export function variants(name, rows) {
  const table = rows.map((row) => {
    const [variant, content] = [row].flat();
    const type = content && (typeof content.read === 'function' ? content : struct(content));
    return { variant, type, small: snake(variant) };
  });
  const numbers = new Map(table.map(({ variant }, number) => [variant, number]));
  const names = new Map(table.filter(({ type }) => !type).map(({ variant, small }) => [small, variant]));
  return {
    names: table.map(({ variant }) => variant),
    write(writer, value) {
      const [variant, content] = taken(value);
      const number = numbers.get(variant);
      const type = table[number]?.type;
      if (number === undefined || Boolean(type) !== (content !== undefined)) throw bad(`one of ${name}`, value);
      writer.varint(number);
      type?.write(writer, content);
    },
    read(reader) {
      const number = reader.varint(4);
      const row = table[number];
      if (!row) throw new Garbled(`${name} has no variant ${number}`);
      return row.type ? { [row.variant]: row.type.read(reader) } : row.variant;
    },
    view(value) {
      const variant = names.get(value);
      if (variant === undefined) throw new Garbled(`none of ${name}`);
      return variant;
    },
  };
}

/** The variant's name and what is in it; nothing in it, where it stands alone. */
export function taken(value) {
  if (typeof value === 'string') return [value, undefined];
  const entries = value !== null && typeof value === 'object' ? Object.entries(value) : [];
  return entries.length === 1 ? entries[0] : [undefined, undefined];
}

/** `HumanInput` as JSON and people have it: `human_input`. */
export function snake(name) {
  return name.replace(/(?<!^)([A-Z])/g, '_$1').toLowerCase();
}

// ---------------------------------------------------------------- messages

export const FaultKind = variants('FaultKind', [
  'Unauthorized',
  'Forbidden',
  'ProtocolMismatch',
  'UnknownRequest',
  'Invalid',
  'Retiring',
  'TooMany',
  'NotFound',
  'Conflict',
  'Unavailable',
  'TimedOut',
]);

export const LedgerKind = variants('LedgerKind', [
  'Admission',
  'Session',
  'Delegation',
  'Cron',
  'Hold',
  'Process',
  'HumanInput',
]);

export const TurnState = variants('TurnState', ['Queued', 'Running', 'Done', 'Failed', 'Interrupted']);

export const QuestionKind = variants('QuestionKind', ['Approval', 'Clarify', 'Sudo', 'Secret']);

export const Verdict = variants('Verdict', [
  'Idle',
  ['TurnInFlight', { detail: optional(text) }],
  'AwaitingHumanInput',
  'TurnProbeUnavailable',
  'InputProbeUnavailable',
]);

export const Holder = struct({ ledger: LedgerKind, id: text, age_ms: u64 });

export const Refusal = struct({
  verdict: Verdict,
  retiring: bool,
  since_ms: optional(u64),
  holders: list(Holder),
  more: u64,
});

export const LedgerSummary = struct({ ledger: LedgerKind, entries: optional(u64) });

export const LedgerEntry = struct({ number: u64, ledger: LedgerKind, id: text, why: text, age_ms: u64 });

export const TickerReport = struct({
  running: bool,
  next_due: optional(text),
  last_error: optional(text),
  bad_jobs: list(text),
});

export const LedgerReport = struct({
  verdict: Verdict,
  ledgers: list(LedgerSummary),
  entries: list(LedgerEntry),
  next: optional(u64),
  ticker: TickerReport,
});

export const Question = struct({ id: text, kind: QuestionKind, text, choices: list(text), age_ms: u64 });

export const TurnReport = struct({
  turn: u64,
  session: text,
  state: TurnState,
  prompt: text,
  reply: optional(text),
  error: optional(text),
  queued_at: text,
  started_at: optional(text),
  ended_at: optional(text),
});

export const SessionReport = struct({ session: text, running: optional(u64), queued: u32, last: u64 });

export const Class = variants('Class', ['Foreground', 'Due', 'Background']);

export const SlotState = variants('SlotState', ['Starting', 'Ready', 'Retiring', 'Stopping']);

export const PoolSlot = struct({
  profile: text,
  class: Class,
  state: SlotState,
  pid: optional(u32),
  verdict: Verdict,
  holders: list(LedgerEntry),
  more: u64,
  age_ms: u64,
  unused_ms: u64,
  memory: optional(u64),
});

export const PoolWaiter = struct({ ticket: optional(u64), profile: text, class: Class, waited_ms: u64 });

export const PoolDue = struct({ profile: text, at: text });

export const PoolReport = struct({
  max: u32,
  memory_budget: optional(u64),
  draining: bool,
  slots: list(PoolSlot),
  queue: list(PoolWaiter),
  due: list(PoolDue),
});

export const Opened = struct({
  pid: u32,
  start_marker: text,
  generation: text,
  profile: optional(text),
  home: text,
  socket: text,
  port: optional(u16),
  version: text,
});

/** What a client can ask. */
export const Request = variants('Request', [
  ['Hello', { protocol: u32, token: text }],
  'Health',
  'Idle',
  ['Ledgers', { after: optional(u64), limit: u32 }],
  ['Prepare', { request_id: optional(text), tied: bool }],
  ['Commit', { permit: text }],
  ['Cancel', { permit: text }],
  'Watch',
  ['RetireWhenIdle', { deadline_ms: optional(u64), request_id: optional(text) }],
  ['Adopt', { pid: u32, start_marker: text }],
  ['Hold', { who: text, why: text }],
  ['Release', { number: u64 }],
  ['Ask', { kind: QuestionKind, text, choices: list(text), timeout_ms: optional(u64) }],
  'Questions',
  ['Answer', { id: text, answer: optional(text) }],
  ['ReleaseProcess', { pid: u32 }],
  ['Submit', { session: text, prompt: text }],
  ['Turn', { turn: u64, wait: bool }],
  'Sessions',
  ['Interrupt', { session: text }],
  ['Log', { session: text, after: u64, limit: u32 }],
  ['Delegate', { session: text, prompt: text, detached: bool }],
  ['Open', { profile: text, background: bool, timeout_ms: optional(u64) }],
  ['Close', { profile: text }],
  'Pool',
  'WatchPool',
  ['PoolLimit', { max: optional(u32), memory_budget: optional(u64) }],
  ['Touch', { profile: text }],
]);

/** An element of a stream. */
export const Event = variants('Event', [
  ['Verdict', Verdict],
  ['Waiting', Refusal],
  ['Prepared', { permit: text, expires_in_ms: u64 }],
  ['Held', { number: u64 }],
  ['Asked', { id: text }],
  ['Answered', { answer: optional(text) }],
  ['Pool', PoolReport],
  ['Opened', Opened],
]);

/** What a backend, or a pool, answers. */
export const Reply = variants('Reply', [
  ['Fault', { kind: FaultKind, message: text }],
  ['Welcome', { protocol: u32, version: text, pid: u32, profile: optional(text) }],
  ['Health', { version: text }],
  ['Verdict', Verdict],
  ['Ledgers', LedgerReport],
  ['Prepared', { permit: text, expires_in_ms: optional(u64) }],
  ['Refused', Refusal],
  ['Committed', { ok: bool, next_due: optional(text) }],
  ['Cancelled', { ok: bool }],
  ['Event', Event],
  'Adopted',
  ['Held', { number: u64 }],
  ['Released', { ok: bool }],
  ['Questions', list(Question)],
  'Answered',
  ['ProcessReleased', { command: text }],
  ['Submitted', { turn: u64, ahead: u32 }],
  ['Turn', TurnReport],
  ['Sessions', list(SessionReport)],
  ['Interrupting', { turn: u64 }],
  ['Log', list(TurnReport)],
  'Closed',
  ['Pool', PoolReport],
  ['Touched', { ok: bool }],
]);

/** One frame from a backend: which process answers, and what. */
export const Answer = struct({ generation: text, reply: Reply });

/** The payload of a message. */
export function encode(type, value) {
  const writer = new Writer();
  type.write(writer, value);
  return writer.finish();
}

/** The message of a payload, which must be used up. Anything that is not plainly one is `Garbled`. */
export function decode(type, payload) {
  const reader = new Reader(Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength));
  const value = type.read(reader);
  const rest = reader.bytes.length - reader.at;
  if (rest > 0) throw new Garbled(`${rest} bytes follow the message`);
  return value;
}
