// Types of the client of hermes backends.

/** A text that only `expose()` gives out: printed, logged or serialised it is `redacted`. */
export class Secret {
  constructor(text: string);
  expose(): string;
  toString(): string;
  toJSON(): string;
}

/** On every call. `deadlineMs` null or Infinity waits without end; the default is that of the client, 5 s at first. */
export interface Patience {
  deadlineMs?: number | null;
  signal?: AbortSignal;
}

/** Which process answered. A changed generation means that another process answers than before. */
export interface Who {
  profile: string | null;
  pid: number | null;
  generation: string | null;
}

/** A whole number of 64 bits: a BigInt where no double holds it exactly (over the socket). */
export type U64 = number | bigint;

// ---- finding backends

/** One endpoint record. The token is in it and never printed. */
export class Endpoint {
  private constructor();
  readonly pid: number;
  readonly profile: string | null;
  readonly generation: string;
  readonly home: string;
  readonly socket: string;
  readonly port: number | null;
  readonly version: string;
  /** `pool` for a pool; a child has none. */
  readonly kind?: string;
  readonly token: Secret;
  readonly startMarker: string;
  readonly record: string;
  readonly name: string;
  isLive(): Promise<boolean>;
}

export interface Where {
  /** Whose variables say where the runtime directory is; those of this process by default. */
  env?: Record<string, string | undefined>;
  dir?: string;
}

export interface Which extends Where {
  profile?: string;
  pid?: number;
  home?: string;
}

export function runtimeDir(env?: Record<string, string | undefined>): string;
export function survey(where?: Where): Promise<{ endpoints: Endpoint[]; refused: Unsafe[] }>;
export function list(where?: Where): Promise<Endpoint[]>;
export function find(which?: Which): Promise<Endpoint>;
export function findPool(which?: Omit<Which, 'profile'>): Promise<Endpoint>;
export function endpointAt(file: string, options?: { requireLive?: boolean }): Promise<Endpoint>;
export function startMarker(pid: number): Promise<string | null>;
export function alive(pid: number, marker: string): Promise<boolean>;

// ---- answers

export type Verdict =
  | { ok: true; idle: true; reason: null }
  | { ok: true; idle: false; reason: 'turn_in_flight'; detail: string | null }
  | { ok: true; idle: false; reason: 'awaiting_human_input' }
  | { ok: true; idle: null; reason: 'turn_probe_unavailable' | 'input_probe_unavailable' };

/** No verdict could be had, which counts as busy. */
export interface Unknown {
  ok: false;
  idle: null;
  reason: 'unauthorized' | 'unreachable' | 'indeterminate';
  error: string;
}

export type Ledger = 'admission' | 'session' | 'delegation' | 'cron' | 'hold' | 'process' | 'human_input';

export interface Refused {
  ok: false;
  idle: boolean | null;
  /** `retirement_in_progress`, or that of a verdict. */
  reason: string | null;
  detail?: string | null;
  since_ms: U64 | null;
  holders: { ledger: Ledger; id: string; age_ms: U64 }[];
  more: U64;
}

export interface Prepared {
  ok: true;
  idle: true;
  permit: Secret;
  /** Null once it is committed. */
  expires_in_ms: U64 | null;
}

export type Ledgers = Verdict & {
  /** `entries` null: it cannot be read. */
  ledgers: { ledger: Ledger; entries: U64 | null }[];
  entries: { number: U64; ledger: Ledger; id: string; why: string; age_ms: U64 }[];
  next: U64 | null;
  ticker: { running: boolean; next_due: string | null; last_error: string | null; bad_jobs: string[] };
};

export type QuestionKind = 'approval' | 'clarify' | 'sudo' | 'secret';

export interface Prompt {
  id: string;
  kind: QuestionKind;
  text: string;
  choices: string[];
  age_ms: U64;
}

export interface Turn {
  turn: U64;
  session: string;
  state: 'queued' | 'running' | 'done' | 'failed' | 'interrupted';
  prompt: string;
  reply: string | null;
  error: string | null;
  queued_at: string;
  started_at: string | null;
  ended_at: string | null;
}

export interface Session {
  session: string;
  running: U64 | null;
  queued: number;
  last: U64;
}

// ---- asking

/** Whom to ask; nothing is the only backend there is. */
export type Target = Endpoint | Which | { socket: string; token?: string | Secret } | { url: string; token: string | Secret };

export interface Connecting extends Patience {
  /** The socket by default, and HTTP where no socket can be opened and the process lives. */
  via?: 'socket' | 'http';
  /** In place of the record's: a control token, say. */
  token?: string | Secret;
  env?: Record<string, string | undefined>;
}

export class Client {
  private constructor();
  static connect(target?: Target, options?: Connecting): Promise<Client>;
  readonly via: 'socket' | 'http';
  readonly pid: number | null;
  readonly profile: string | null;
  readonly generation: string | null;

  health(options?: Patience): Promise<{ ok: true; version: string; auth_required: false } & Who>;
  idle(options?: Patience): Promise<Verdict & Who>;
  ledgers(options?: { after?: U64 | null; limit?: number } & Patience): Promise<Ledgers & Who>;
  prepare(options?: { requestId?: string; tied?: boolean } & Patience): Promise<(Prepared | Refused) & Who>;
  commit(permit: Secret | string, options?: Patience): Promise<({ ok: true; next_due: string | null } | { ok: false }) & Who>;
  cancel(permit: Secret | string, options?: Patience): Promise<{ ok: boolean } & Who>;
  retireWhenIdle(
    options?: { withinMs?: number; requestId?: string; onWaiting?: (refusal: Refused & Who) => void } & Patience,
  ): Promise<Retirement>;
  adopt(options?: Patience): Promise<{ ok: true } & Who>;
  hold(options: { who?: string; why: string } & Patience): Promise<Hold>;
  ask(options: { kind?: QuestionKind; text: string; choices?: string[]; timeoutMs?: number } & Patience): Promise<Question>;
  questions(options?: Patience): Promise<{ ok: true; prompts: Prompt[] } & Who>;
  answer(id: string, answer: string | Secret | null, options?: Patience): Promise<{ ok: true } & Who>;
  releaseProcess(pid: number, options?: Patience): Promise<{ ok: true; command: string } & Who>;
  submit(session: string, prompt: string, options?: Patience): Promise<{ ok: true; turn: U64; ahead: number } & Who>;
  delegate(
    session: string,
    prompt: string,
    options?: { detached?: boolean } & Patience,
  ): Promise<{ ok: true; turn: U64; ahead: number } & Who>;
  turn(turn: U64, options?: { wait?: boolean } & Patience): Promise<{ ok: true; turn: Turn } & Who>;
  sessions(options?: Patience): Promise<{ ok: true; sessions: Session[] } & Who>;
  interrupt(session: string, options?: Patience): Promise<{ ok: true; turn: U64 } & Who>;
  log(session: string, options?: { after?: U64; limit?: number } & Patience): Promise<{ ok: true; turns: Turn[] } & Who>;
  watch(options?: Watching): AsyncGenerator<Watched, void, void>;
  close(): void;
}

/** A lease: the backend is busy as long as it lives. */
export class Hold {
  private constructor();
  readonly number: U64;
  /** True if it was released, false if the backend or the connection went. */
  readonly ended: Promise<boolean>;
  release(options?: Patience): Promise<{ ok: boolean }>;
}

export class Question {
  private constructor();
  readonly id: string;
  /** Null: it was declined. Given up, the question is withdrawn. There is no deadline unless one is given. */
  answer(options?: Patience): Promise<{ ok: true; answer: Secret | null } & Who>;
  withdraw(): void;
}

/** A permit on a connection of its own. */
export class Retirement {
  private constructor();
  readonly permit: Secret;
  readonly expires_in_ms: U64;
  commit(options?: Patience): Promise<({ ok: true; next_due: string | null } | { ok: false }) & Who>;
  cancel(options?: Patience): Promise<{ ok: boolean } & Who>;
}

// ---- pools

export interface PoolSlot {
  /** `default` is the home without a profile. */
  profile: string;
  class: 'foreground' | 'due' | 'background';
  state: 'starting' | 'ready' | 'retiring' | 'stopping';
  pid: number | null;
  /** What it last said of itself, with the keys of a verdict. */
  idle: boolean | null;
  reason: string | null;
  detail: string | null;
  holders: { ledger: Ledger; id: string; why: string; age_ms: U64 }[];
  more: U64;
  age_ms: U64;
  unused_ms: U64;
  /** In bytes; null where it was not measured. */
  memory: U64 | null;
}

/** As `hermesctl pool --json` has it. */
export interface PoolReport {
  ok: true;
  max: number;
  memory_budget: U64 | null;
  /** It stops: nothing more is opened. */
  draining: boolean;
  slots: PoolSlot[];
  /** In the order in which they are served. */
  queue: { ticket: U64 | null; profile: string; class: PoolSlot['class']; waited_ms: U64 }[];
  due: { profile: string; at: string }[];
}

export interface WhichPool {
  env?: Record<string, string | undefined>;
  home?: string;
  pid?: number;
  socket?: string;
  /** In place of the record's: a control token, say. */
  token?: string | Secret;
}

export interface Opening extends Patience {
  /** Nobody waits for it: whoever waits in the foreground goes first. */
  background?: boolean;
  /** The pool's own patience, whose fault names who was in the way. */
  timeoutMs?: number;
  /** Told while it waits: the slots are in the way. */
  onWaiting?: (report: PoolReport & Who) => void;
}

/** A pool of backends, by its control socket. */
export class Pool {
  private constructor();
  static connect(options?: WhichPool & Patience): Promise<Pool>;
  readonly pid: number;
  readonly generation: string;
  /** The record of the backend, for `Client.connect`. Waits without end unless a deadline is given; giving up gives the place in the queue up. */
  open(profile: string, options?: Opening): Promise<Endpoint>;
  /** `Conflict` if it does not prove idle. The default deadline is 15 s. */
  close(profile: string, options?: Patience): Promise<{ ok: true; closed: true; profile: string }>;
  report(options?: Patience): Promise<PoolReport & Who>;
  watch(options?: Patience): AsyncGenerator<PoolReport & Who, void, void>;
  /** In bytes; 0 is no limit. */
  limit(limits?: { max?: number; memoryBudget?: U64 } & Patience): Promise<PoolReport & Who>;
  touch(profile: string, options?: Patience): Promise<{ ok: boolean } & Who>;
  end(): void;
}

/** The verdict whatever happens; only the caller's own abort rejects. */
export function probe(target?: Target, options?: Connecting): Promise<(Verdict | Unknown) & Who>;

export type Watched = (Verdict | Unknown) & Who & { generation_changed: boolean };

export interface Reconnect {
  attempts: number;
  baseMs: number;
  capMs: number;
}

export interface Watching extends Connecting {
  reconnect?: Partial<Reconnect>;
}

/** The verdict now and at every change, across restarts. Ends by `break`, by the signal, or with the last error. */
export function watch(target?: Target, options?: Watching): AsyncGenerator<Watched, void, void>;
export const RECONNECT: Readonly<Reconnect>;
export function backoff(attempt: number, limits?: Reconnect, random?: () => number): number;

export const DEADLINE_MS: number;
export const MAX_FRAME: number;
export const MAX_HELLO: number;
export const PROTOCOL: number;

// ---- errors

/** `kind` is the name of the class. */
export class HermesError extends Error {
  readonly kind: string;
  readonly retryHelps: boolean;
}
export class Aborted extends HermesError {}
export class BrokenOff extends HermesError {}
export class Conflict extends HermesError {}
export class Forbidden extends HermesError {}
export class Garbled extends HermesError {}
export class Invalid extends HermesError {}
export class NeedsSocket extends HermesError {}
export class NotFound extends HermesError {}
export class ProtocolMismatch extends HermesError {}
export class Retiring extends HermesError {}
export class TimedOut extends HermesError {}
export class TooLong extends HermesError {}
export class Unauthorized extends HermesError {}
export class Unavailable extends HermesError {}
export class TooMany extends Unavailable {}
export class UnknownRequest extends HermesError {}
export class Unreachable extends HermesError {}
export class Unsafe extends HermesError {}
