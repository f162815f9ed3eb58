// Every call by both doors says what `hermesctl --json` says.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { test } from 'node:test';
import {
  Client,
  Conflict,
  Invalid,
  NeedsSocket,
  NotFound,
  Retiring,
  Secret,
  TooMany,
  Unauthorized,
  alive,
  find,
  list,
  probe,
  startMarker,
} from '../hermes.mjs';
import { TOKEN, World, ageless, less, until } from './support.mjs';

const WHO = ['profile', 'pid', 'generation'];

/** One child, and a client for each of its doors. */
async function both(t, world, options) {
  const child = await world.child(options);
  const target = { env: world.env, pid: child.pid };
  const socket = await Client.connect(target, { via: 'socket' });
  const http = await Client.connect(target, { via: 'http' });
  t.after(() => [socket, http].forEach((client) => client.close()));
  assert.deepEqual([socket.via, http.via], ['socket', 'http']);
  /** The answer, which must be the same by either door. */
  const same = async (ask) => {
    const answer = await outcome(ask(socket));
    assert.deepEqual(ageless(await outcome(ask(http))), ageless(answer));
    return answer;
  };
  return { child, socket, http, same };
}

const outcome = (promise) =>
  promise.then(
    (answer) => answer,
    (error) => ({ kind: error.kind, message: error.message }),
  );

test('the verdict, the ledgers and the list are those of hermesctl', async (t) => {
  const world = new World(t);
  world.waitingJob('nightly');
  const { child, socket, same } = await both(t, world, { env: { HERMES_DESKTOP: '1' } });

  const busy = await same((client) => client.idle());
  assert.deepEqual(busy, await world.json('idle'));
  assert.equal(busy.detail, 'cron:nightly');
  assert.deepEqual(await probe(await find({ env: world.env })), busy);
  assert.deepEqual(await probe(await find({ env: world.env }), { via: 'http' }), busy);

  const ledgers = await same((client) => client.ledgers());
  assert.deepEqual(ageless(ledgers), ageless(await world.json('ledger')));
  assert.deepEqual([ledgers.entries[0].ledger, ledgers.entries[0].id], ['cron', 'nightly']);
  const refused = await same((client) => client.prepare({ requestId: 'a' }));
  const retired = await world.json('retire');
  assert.deepEqual(ageless(refused), ageless(retired));
  assert.equal(refused.ok, false);

  const health = await same((client) => client.health());
  assert.deepEqual(less(health, ...WHO), { ok: true, version: health.version, auth_required: false });
  const listed = await list({ env: world.env });
  assert.deepEqual(JSON.parse(JSON.stringify(listed)), await world.json('list'));
  assert.equal(listed[0].pid, child.pid);

  world.touch('release');
  await until('an idle verdict', async () => (await socket.idle()).idle === true);
  assert.deepEqual(await same((client) => client.idle()), await world.json('idle'));
});

test('turns, sessions and logs are those of hermesctl', async (t) => {
  const world = new World(t);
  const { socket, http, same } = await both(t, world, { env: world.agent() });
  assert.deepEqual(less(await same((client) => client.sessions()), ...WHO), { ok: true, sessions: [] });
  const first = await socket.submit('s', 'say one');
  const second = await http.submit('s', 'wait go');
  assert.deepEqual([first.turn, second.turn], [1, 2]);
  const done = await socket.turn(1, { wait: true });
  assert.deepEqual([done.turn.state, done.turn.reply.trim()], ['done', 'you said one']);
  await until('the second turn to run', async () => (await socket.turn(2)).turn.state === 'running');

  await same((client) => client.turn(1));
  assert.deepEqual(less(await same((client) => client.sessions()), ...WHO), await world.json('sessions'));
  assert.deepEqual(less(await same((client) => client.log('s')), ...WHO), await world.json('log', 's'));
  assert.deepEqual(
    less(await same((client) => client.log('s', { after: 1, limit: 1 })), ...WHO),
    await world.json('log', 's', '--after', '1', '--limit', '1'),
  );
  const delegated = await socket.delegate('s', 'say two', { detached: true });
  assert.equal(delegated.ok, true);

  // A turn that is waited for holds up nobody else on the same client.
  const waiting = socket.turn(2, { wait: true });
  assert.equal((await socket.idle()).idle, false);
  assert.deepEqual(less(await http.interrupt('s'), ...WHO), { ok: true, turn: 2 });
  assert.equal((await waiting).turn.state, 'interrupted');
  assert.deepEqual((await http.turn(2, { wait: true })).turn, (await waiting).turn);

  const errors = [
    [NotFound, (client) => client.turn(99)],
    [Conflict, (client) => client.interrupt('nobody')],
    [Invalid, (client) => client.submit('..', 'say three')],
    [Invalid, (client) => client.submit('s', '')],
    [NotFound, (client) => client.answer('srq-000000000000', null)],
    [Invalid, (client) => client.prepare({ requestId: '' })],
    [Invalid, (client) => client.ledgers({ limit: -1 })],
    [Invalid, (client) => client.turn('1?wait=1')],
  ];
  for (const [Kind, ask] of errors) {
    const { kind, message } = await same(ask);
    if (kind !== Kind.name) assert.fail(`${ask}: ${kind}: ${message}`);
  }
  for (const name of ['a name with spaces', 'café 100%', 'a?b#c&d=e']) {
    const { turn } = await http.submit(name, 'say x');
    await socket.turn(turn, { wait: true });
    assert.equal((await same((client) => client.log(name))).turns[0].session, name);
  }
  for (const name of ['a/b', 'nul\0', '%2F/']) assert.equal((await outcome(http.submit(name, 'say x'))).kind, Invalid.name);
  await assert.rejects(http.submit('', 'say x'), NeedsSocket);
  const beyond = 2n ** 63n;
  assert.deepEqual((await same((client) => client.log('s', { after: beyond }))).turns, []);
  assert.equal((await same((client) => client.turn(beyond + 1n))).kind, NotFound.name);
});

test('a queue that is full is told so by either door', async (t) => {
  const world = new World(t);
  const { socket, same } = await both(t, world, { env: world.agent() });
  await socket.submit('s', 'wait for ever');
  await Promise.allSettled(Array.from({ length: 65 }, () => socket.submit('s', 'say later')));
  assert.equal((await same((client) => client.submit('s', 'say one more'))).kind, TooMany.name);
});

test('a process that outlives its turn is released', async (t) => {
  const world = new World(t);
  const { socket, http } = await both(t, world, { env: world.agent() });
  await socket.submit('s', 'leave behind');
  const pid = await until('a stray process', async () => {
    const { entries } = await socket.ledgers();
    return Number(entries.find((entry) => entry.ledger === 'process')?.id);
  });
  await assert.rejects(http.releaseProcess(pid), NeedsSocket);
  assert.match((await socket.releaseProcess(pid)).command, /sleep/);
  await assert.rejects(socket.releaseProcess(pid), NotFound);
  process.kill(pid, 'SIGKILL');
});

test('a question is asked, shown and answered', async (t) => {
  const world = new World(t);
  const { socket, http, same } = await both(t, world);
  const question = await socket.ask({ kind: 'approval', text: 'May I?', choices: ['yes', 'no'] });
  const prompts = await same((client) => client.questions());
  assert.deepEqual(ageless(less(prompts, ...WHO)), ageless(await world.json('prompts')));
  assert.deepEqual([prompts.prompts[0].id, prompts.prompts[0].kind], [question.id, 'approval']);
  assert.equal((await socket.idle()).reason, 'awaiting_human_input');
  assert.equal((await same((client) => client.answer(question.id, 'perhaps'))).kind, 'Invalid');
  const answered = question.answer();
  assert.deepEqual(less(await http.answer(question.id, 'yes'), ...WHO), { ok: true });
  assert.equal((await answered).answer.expose(), 'yes');
  assert.equal((await same((client) => client.answer(question.id, 'no'))).kind, Conflict.name);

  const declined = await socket.ask({ kind: 'Secret', text: 'Password?' });
  await socket.answer(declined.id, null);
  assert.equal((await declined.answer()).answer, null);
  const withdrawn = await socket.ask({ text: 'Never mind' });
  withdrawn.withdraw();
  await until('the question to be withdrawn', async () => (await socket.questions()).prompts.length === 0);
  await assert.rejects(http.ask({ text: 'By HTTP?' }), NeedsSocket);
});

test('a hold keeps the backend busy by either door, until it is released', async (t) => {
  const world = new World(t);
  const { socket, http, same } = await both(t, world);
  for (const client of [socket, http]) {
    const hold = await client.hold({ who: 'backup', why: 'copying files' });
    const busy = await same((other) => other.idle());
    assert.deepEqual(busy, await world.json('idle'));
    assert.equal(busy.detail, 'hold:backup');
    assert.equal((await socket.ledgers()).entries[0].number, hold.number);
    assert.deepEqual(await hold.release(), { ok: true });
    assert.equal(await hold.ended, true);
    await until('the hold to be gone', async () => (await socket.idle()).idle === true);
    await assert.rejects(client.hold({ who: 'x', why: '' }), Invalid);
  }
});

test('prepare, cancel and commit are the same steps by either door', async (t) => {
  const world = new World(t);
  const { child, socket, http, same } = await both(t, world);
  const granted = await same((client) => client.prepare({ requestId: 'one' }));
  assert.ok(granted.ok === true && granted.idle === true && granted.permit instanceof Secret);
  assert.equal((await http.prepare({ requestId: 'one' })).permit.expose(), granted.permit.expose());
  const other = await same((client) => client.prepare({ requestId: 'two' }));
  assert.deepEqual([other.ok, other.idle, other.reason], [false, false, 'retirement_in_progress']);
  assert.deepEqual(less(await same((client) => client.commit('wrong')), ...WHO), { ok: false });
  assert.equal((await same((client) => client.submit('s', 'say late'))).kind, Retiring.name);
  assert.deepEqual(less(await http.cancel(granted.permit), ...WHO), { ok: true });
  assert.deepEqual(less(await same((client) => client.cancel(granted.permit)), ...WHO), { ok: false });

  const { permit } = await socket.prepare({ tied: true });
  await assert.rejects(http.prepare({ tied: true }), Invalid);
  const committed = await same((client) => client.commit(permit));
  assert.deepEqual(less(committed, ...WHO), { ok: true, next_due: null });
  assert.equal((await child.exited).code, 0);
});

test('a tied permit goes with its client', async (t) => {
  const world = new World(t);
  const { socket, http } = await both(t, world);
  assert.equal((await socket.prepare({ tied: true })).ok, true);
  socket.close();
  await until('a permit for somebody else', async () => {
    const { ok, permit } = await http.prepare();
    if (ok) await http.cancel(permit);
    return ok;
  });
});

test('retireWhenIdle waits in line, says who is in the way, and gets the permit with the last holder', async (t) => {
  const world = new World(t);
  const { child, socket, http } = await both(t, world);
  const hold = await socket.hold({ who: 'backup', why: 'copying' });
  const waiting = [];
  const retiring = socket.retireWhenIdle({ onWaiting: (refusal) => waiting.push(refusal) });
  await until('the line to say who is in the way', () => waiting.length > 0);
  assert.deepEqual([waiting[0].ok, waiting[0].holders[0].ledger, waiting[0].holders[0].id], [false, 'hold', 'backup']);
  await hold.release();
  const given = await retiring;
  assert.deepEqual(less(await given.cancel(), ...WHO), { ok: true });
  await assert.rejects(http.retireWhenIdle(), NeedsSocket);
  const again = await socket.retireWhenIdle({ withinMs: 5_000, requestId: 'again' });
  assert.equal((await again.commit()).ok, true);
  assert.equal((await child.exited).code, 0);
});

test('an orphan is adopted by this process, and works on; a child with a living owner is not', async (t) => {
  const world = new World(t);
  const owner = spawn('sleep', ['300'], { env: world.env });
  const parent = {
    HERMES_PARENT_PID: String(owner.pid),
    HERMES_PARENT_START_MARKER: await startMarker(owner.pid),
    HERMES_PARENT_NONCE: 'n',
  };
  const { socket, http, child } = await both(t, world, { env: parent });
  await assert.rejects(socket.adopt(), Conflict);
  await assert.rejects(http.adopt(), NeedsSocket);

  const hold = await socket.hold({ who: 'work', why: 'it must not be lost' });
  owner.kill('SIGKILL');
  await until('the orphan to admit nothing new', async () => {
    const more = await outcome(socket.hold({ who: 'more', why: 'work' }));
    await more.release?.();
    return more.kind === Retiring.name;
  });
  assert.deepEqual(less(await socket.adopt(), ...WHO), { ok: true });
  assert.deepEqual(less(await socket.adopt(), ...WHO), { ok: true });
  await (await socket.hold({ who: 'more', why: 'work' })).release();
  await hold.release();
  await until('an idle verdict', async () => (await socket.idle()).idle === true);
  assert.ok(await alive(child.pid, await startMarker(child.pid)));
});

test('the control token alone may retire where it is set', async (t) => {
  const world = new World(t);
  const { same, child } = await both(t, world, { env: { HERMES_CONTROL_TOKEN: 'control' } });
  assert.equal((await same((client) => client.prepare())).kind, 'Forbidden');
  for (const via of ['socket', 'http']) {
    const owner = await Client.connect({ env: world.env, pid: child.pid }, { via, token: 'control' });
    const { permit } = await owner.prepare();
    assert.equal((await owner.cancel(permit)).ok, true);
    owner.close();
  }
});

test('a wrong token is told so by either door, and the verdict is unknown', async (t) => {
  const world = new World(t);
  const child = await world.child();
  for (const via of ['socket', 'http']) {
    const wrong = { via, token: 'wrong-token' };
    await assert.rejects(Client.connect({ env: world.env }, wrong), Unauthorized);
    const seen = await probe(await find({ env: world.env }), wrong);
    assert.deepEqual([seen.ok, seen.idle, seen.reason, seen.pid], [false, null, 'unauthorized', child.pid]);
  }
  const seen = await probe({ url: child.url, token: TOKEN });
  assert.deepEqual([seen.idle, seen.pid], [true, null]);
  const token = `${world.root}/token`;
  writeFileSync(token, TOKEN, { mode: 0o600 });
  assert.deepEqual(seen, await world.json('idle', '--url', child.url, '--token-file', token));
});
