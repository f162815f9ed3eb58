// One row a call: what goes over the socket, what goes over HTTP, and the one object that comes back by either door.
//
// The objects have the keys of the HTTP contract, which are those of `hermesctl --json` too. A reply of the wire becomes
// one by `shown`; a body of HTTP is read back into a reply first, by the same types, so that what is not plainly an
// answer is none.

import { Garbled, NeedsSocket } from './errors.mjs';
import { Secret, exposed } from './secret.mjs';
import {
  Holder,
  LedgerEntry,
  LedgerSummary,
  Question,
  SessionReport,
  TickerReport,
  TurnReport,
  bool,
  list,
  optional,
  snake,
  taken,
  text,
  u32,
  u64,
} from './wire.mjs';

// ---------------------------------------------------------------- verdicts

/** `idle`, `reason` and, for work in flight alone, `detail`. */
function verdictKeys(verdict) {
  const [kind, content] = taken(verdict);
  switch (kind) {
    case 'Idle':
      return { idle: true, reason: null };
    case 'TurnInFlight':
      return { idle: false, reason: 'turn_in_flight', detail: content.detail };
    case 'AwaitingHumanInput':
      return { idle: false, reason: 'awaiting_human_input' };
    case 'TurnProbeUnavailable':
      return { idle: null, reason: 'turn_probe_unavailable' };
    case 'InputProbeUnavailable':
      return { idle: null, reason: 'input_probe_unavailable' };
    default:
      throw new Garbled('no verdict');
  }
}

/** The verdict that these keys say, only if they plainly say one. */
function verdictOf({ idle, reason = null, detail = null }) {
  const word = reason === null || typeof reason === 'string';
  if (!word) throw new Garbled('no verdict');
  if (idle === true && reason === null) return 'Idle';
  if (idle === false) {
    if (reason === 'awaiting_human_input') return 'AwaitingHumanInput';
    return { TurnInFlight: { detail: typeof detail === 'string' ? detail : null } };
  }
  if (idle === null) return reason === 'input_probe_unavailable' ? 'InputProbeUnavailable' : 'TurnProbeUnavailable';
  throw new Garbled('no verdict');
}

function refusalKeys({ verdict, retiring, since_ms, holders, more }) {
  const why = retiring ? { idle: false, reason: 'retirement_in_progress' } : verdictKeys(verdict);
  return { ok: false, ...why, since_ms, holders: holders.map(small('ledger')), more };
}

function refusalOf(body) {
  const retiring = body.reason === 'retirement_in_progress';
  return {
    verdict: retiring ? 'Idle' : verdictOf(body),
    retiring,
    since_ms: optional(u64).view(body.since_ms),
    // A server of the bare contract says neither.
    holders: body.holders === undefined ? [] : list(Holder).view(body.holders),
    more: body.more === undefined ? 0 : u64.view(body.more),
  };
}

/** A pool as `hermesctl pool --json` has it. */
function poolKeys({ slots, queue, ...limits }) {
  return { ok: true, ...limits, slots: slots.map(slotKeys), queue: queue.map(small('class')) };
}

function slotKeys({ verdict, holders, ...slot }) {
  const named = holders.map(({ number, ...holder }) => small('ledger')(holder));
  return { ...small('class')(small('state')(slot)), detail: null, ...verdictKeys(verdict), holders: named };
}

/** The same object with the name of an enum as JSON has it. */
const small = (field) => (object) => ({ ...object, [field]: snake(object[field]) });

// ---------------------------------------------------------------- replies

/** By reply: the object that the caller gets, and how a body of HTTP is read back into the reply. */
const REPLIES = {
  Health: {
    shown: ({ version }) => ({ ok: true, version, auth_required: false }),
    body: ({ version }) => ({ version: text.view(version) }),
  },
  Verdict: { shown: (verdict) => ({ ok: true, ...verdictKeys(verdict) }), body: verdictOf },
  Ledgers: {
    shown: ({ verdict, ledgers, entries, next, ticker }) => ({
      ok: true,
      ...verdictKeys(verdict),
      ledgers: ledgers.map(small('ledger')),
      entries: entries.map(small('ledger')),
      next,
      ticker,
    }),
    body: (body) => ({
      verdict: verdictOf(body),
      ledgers: list(LedgerSummary).view(body.ledgers),
      entries: list(LedgerEntry).view(body.entries),
      next: optional(u64).view(body.next),
      ticker: TickerReport.view(body.ticker),
    }),
  },
  Prepared: {
    shown: ({ permit, expires_in_ms }) => ({ ok: true, idle: true, permit: new Secret(permit), expires_in_ms }),
    body(body) {
      const permit = text.view(body.token);
      // Only a literal idle and a permit together are leave to stop anything.
      if (body.idle !== true || permit === '') throw new Garbled('no permit');
      return { permit, expires_in_ms: optional(u64).view(body.expires_in_ms) };
    },
  },
  Refused: { shown: refusalKeys, body: refusalOf, ok: false },
  Committed: {
    shown: ({ ok, next_due }) => (ok ? { ok, next_due } : { ok }),
    body: ({ ok, next_due }) => ({ ok: bool.view(ok), next_due: optional(text).view(next_due) }),
    ok: null,
  },
  Cancelled: { shown: ({ ok }) => ({ ok }), body: ({ ok }) => ({ ok: bool.view(ok) }), ok: null },
  Adopted: { shown: () => ({ ok: true }) },
  Released: { shown: ({ ok }) => ({ ok }) },
  Questions: {
    shown: (questions) => ({ ok: true, prompts: questions.map(small('kind')) }),
    body: ({ prompts }) => list(Question).view(prompts),
  },
  Answered: { shown: () => ({ ok: true }), body: () => undefined },
  ProcessReleased: { shown: ({ command }) => ({ ok: true, command }) },
  Submitted: {
    shown: ({ turn, ahead }) => ({ ok: true, turn, ahead }),
    body: ({ turn, ahead }) => ({ turn: u64.view(turn), ahead: u32.view(ahead) }),
  },
  Turn: { shown: (turn) => ({ ok: true, turn: small('state')(turn) }), body: ({ turn }) => TurnReport.view(turn) },
  Sessions: {
    shown: (sessions) => ({ ok: true, sessions }),
    body: ({ sessions }) => list(SessionReport).view(sessions),
  },
  Interrupting: { shown: ({ turn }) => ({ ok: true, turn }), body: ({ turn }) => ({ turn: u64.view(turn) }) },
  Log: {
    shown: (turns) => ({ ok: true, turns: turns.map(small('state')) }),
    body: ({ turns }) => list(TurnReport).view(turns),
  },
  Closed: { shown: () => ({ ok: true, closed: true }) },
  Pool: { shown: poolKeys },
  Touched: { shown: ({ ok }) => ({ ok }) },
};

/** The caller's object for a reply, if it is one of those that this call has. */
export function shown(call, reply) {
  const [kind, content] = taken(reply);
  if (!call.replies.includes(kind)) throw new Garbled(`${kind} is no answer to this question`);
  return REPLIES[kind].shown(content);
}

/** The caller's object for a body of HTTP, by way of the reply that it stands for. */
export function shownBody(call, body) {
  for (const kind of call.replies) {
    const { shown, body: read, ok = true } = REPLIES[kind];
    if (ok === null || body.ok === ok) return shown(read(body));
  }
  throw new Garbled('the answer says neither that it is ok nor that it is not');
}

/** The caller's object for an event of either door. */
export const EVENTS = {
  Verdict: { shown: (verdict) => ({ ok: true, ...verdictKeys(verdict) }) },
  Waiting: { shown: refusalKeys },
  Prepared: { shown: REPLIES.Prepared.shown },
  Held: { shown: ({ number }) => ({ ok: true, number }), body: ({ number }) => ({ number: u64.view(number) }) },
  Asked: { shown: ({ id }) => ({ ok: true, id }) },
  Pool: { shown: poolKeys },
  Answered: { shown: ({ answer }) => ({ ok: true, answer: answer === null ? null : new Secret(answer) }) },
};

/** A verdict that came as an event of HTTP. */
export function verdictBody(body) {
  if (body.ok !== true) throw new Garbled('no verdict');
  return REPLIES.Verdict.shown(verdictOf(body));
}

// ---------------------------------------------------------------- calls

const get = (path) => ({ method: 'GET', path });
const post = (path, body) => ({ method: 'POST', path, body });

/** A name as a part of a path, which is never empty. */
function part(name) {
  if (name === '') throw new NeedsSocket('an empty name cannot stand in a path of HTTP: use the control socket');
  return encodeURIComponent(name);
}

const RETIREMENT = '/api/health/retirement';

/** What a caller gives as a kind, in either spelling, as the wire has it. */
const kindOf = (kind) => (typeof kind === 'string' && kind !== '' ? kind[0].toUpperCase() + kind.slice(1) : kind);

/** By method of the client: the request, its place over HTTP if it has one, and the replies that answer it. */
export const CALLS = {
  health: { request: () => 'Health', http: () => get('/api/health'), replies: ['Health'] },
  idle: { request: () => 'Idle', http: () => get('/api/health/idle'), replies: ['Verdict'] },
  ledgers: {
    request: ({ after = null, limit = 100 }) => ({ Ledgers: { after, limit } }),
    http: ({ after = null, limit = 100 }) =>
      get(`/api/health/ledgers?limit=${limit}${after === null ? '' : `&after=${after}`}`),
    replies: ['Ledgers'],
  },
  prepare: {
    request: ({ requestId = null, tied = false }) => ({ Prepare: { request_id: requestId, tied } }),
    http: ({ requestId = null, tied = false }) => post(RETIREMENT, { action: 'prepare', request_id: requestId, tied }),
    replies: ['Prepared', 'Refused'],
  },
  commit: {
    request: ({ permit }) => ({ Commit: { permit: exposed(permit) } }),
    http: ({ permit }) => post(RETIREMENT, { action: 'commit', token: exposed(permit) }),
    replies: ['Committed'],
  },
  cancel: {
    request: ({ permit }) => ({ Cancel: { permit: exposed(permit) } }),
    http: ({ permit }) => post(RETIREMENT, { action: 'cancel', token: exposed(permit) }),
    replies: ['Cancelled'],
  },
  adopt: { request: ({ pid, startMarker }) => ({ Adopt: { pid, start_marker: startMarker } }), replies: ['Adopted'] },
  questions: { request: () => 'Questions', http: () => get('/api/prompts'), replies: ['Questions'] },
  answer: {
    request: ({ id, answer }) => ({ Answer: { id, answer: exposed(answer) ?? null } }),
    http: ({ id, answer }) =>
      post(`/api/prompts/${part(id)}`, answer === null || answer === undefined ? { decline: true } : { answer: exposed(answer) }),
    replies: ['Answered'],
  },
  releaseProcess: { request: ({ pid }) => ({ ReleaseProcess: { pid } }), replies: ['ProcessReleased'] },
  submit: {
    request: ({ session, prompt }) => ({ Submit: { session, prompt } }),
    http: ({ session, prompt }) => post(`/api/sessions/${part(session)}/prompts`, { prompt }),
    replies: ['Submitted'],
  },
  turn: {
    request: ({ turn, wait = false }) => ({ Turn: { turn, wait } }),
    http: ({ turn, wait = false }) => get(`/api/turns/${turn}?wait=${wait ? 1 : 0}`),
    replies: ['Turn'],
  },
  sessions: { request: () => 'Sessions', http: () => get('/api/sessions'), replies: ['Sessions'] },
  interrupt: {
    request: ({ session }) => ({ Interrupt: { session } }),
    http: ({ session }) => post(`/api/sessions/${part(session)}/interrupt`, {}),
    replies: ['Interrupting'],
  },
  log: {
    request: ({ session, after = 0, limit = 50 }) => ({ Log: { session, after, limit } }),
    http: ({ session, after = 0, limit = 50 }) => get(`/api/sessions/${part(session)}?after=${after}&limit=${limit}`),
    replies: ['Log'],
  },
  delegate: {
    request: ({ session, prompt, detached = false }) => ({ Delegate: { session, prompt, detached } }),
    http: ({ session, prompt, detached = false }) => post(`/api/sessions/${part(session)}/delegations`, { prompt, detached }),
    replies: ['Submitted'],
  },
  // Of a pool, which has no HTTP.
  close: { request: ({ profile }) => ({ Close: { profile } }), replies: ['Closed'] },
  report: { request: () => 'Pool', replies: ['Pool'] },
  limit: {
    request: ({ max = null, memoryBudget = null }) => ({ PoolLimit: { max, memory_budget: memoryBudget } }),
    replies: ['Pool'],
  },
  touch: { request: ({ profile }) => ({ Touch: { profile } }), replies: ['Touched'] },
};

/** By method of the client: the request that turns a connection into a stream, and its place over HTTP. */
export const STREAMS = {
  watch: { request: () => 'Watch', http: () => get('/api/health/idle/events') },
  retireWhenIdle: {
    request: ({ withinMs = null, requestId = null }) => ({
      RetireWhenIdle: { deadline_ms: withinMs, request_id: requestId },
    }),
  },
  hold: {
    request: ({ who, why }) => ({ Hold: { who, why } }),
    http: ({ who, why }) => post('/api/holds', { who, why }),
  },
  ask: {
    request: ({ kind = 'clarify', text: question, choices = [], timeoutMs = null }) => ({
      Ask: { kind: kindOf(kind), text: question, choices, timeout_ms: timeoutMs },
    }),
  },
  open: {
    request: ({ profile, background = false, timeoutMs = null }) => ({
      Open: { profile, background, timeout_ms: timeoutMs },
    }),
  },
  watchPool: { request: () => 'WatchPool' },
};
