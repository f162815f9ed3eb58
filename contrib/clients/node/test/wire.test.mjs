// The vector file that the Rust tests generate, both ways.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Garbled, Invalid, TooLong } from '../errors.mjs';
import { Frames, MAX_FRAME, frame } from '../frames.mjs';
import { Answer, PROTOCOL, Reply, Request, decode, encode } from '../wire.mjs';

const vectors = JSON.parse(readFileSync(new URL('../../../vectors.json', import.meta.url)));
const type = ({ direction }) => ({ to_backend: Request, from_backend: Answer })[direction];
const bytes = ({ hex }) => Buffer.from(hex, 'hex');

test('the protocol number is that of the vectors', () => {
  assert.equal(PROTOCOL, vectors.protocol);
});

test('every vector is read and written as it stands', () => {
  assert.ok(vectors.messages.length > 50);
  for (const vector of vectors.messages) {
    assert.deepEqual(decode(type(vector), bytes(vector)), vector.value, vector.name);
    assert.equal(encode(type(vector), vector.value).toString('hex'), vector.hex, vector.name);
  }
});

test('numbers in more bytes than they need are read', () => {
  for (const vector of vectors.lenient) assert.deepEqual(decode(type(vector), bytes(vector)), vector.value, vector.name);
});

test('what must be refused is refused', () => {
  for (const vector of vectors.refused) {
    assert.throws(() => decode(type(vector), bytes(vector)), Garbled, vector.name);
  }
  for (const { name, limit, hex } of vectors.refused_headers) {
    assert.throws(() => [...new Frames(limit).push(Buffer.from(hex, 'hex'))], Garbled, name);
  }
});

test('every message cut anywhere is refused', () => {
  for (const vector of vectors.messages) {
    const whole = bytes(vector);
    for (let end = 0; end < whole.length; end += 1) {
      assert.throws(() => decode(type(vector), whole.subarray(0, end)), Garbled, `${vector.name} cut at ${end}`);
    }
  }
});

test('every variant of this client is in the vectors', () => {
  const shown = new Set(vectors.messages.map(({ value, direction }) => {
    const message = direction === 'to_backend' ? value : value.reply;
    return `${direction} ${typeof message === 'string' ? message : Object.keys(message)[0]}`;
  }));
  const known = [...Request.names.map((name) => `to_backend ${name}`), ...Reply.names.map((name) => `from_backend ${name}`)];
  assert.deepEqual(new Set(known), shown);
});

test('random bytes are either a message or garbled, and never anything else', () => {
  let seed = 0x9e3779b9;
  const random = () => {
    seed = Math.imul(seed ^ (seed >>> 15), 0x85ebca6b) + 0x6d2b79f5;
    return (seed ^ (seed >>> 13)) >>> 0;
  };
  for (let round = 0; round < 20_000; round += 1) {
    const noise = Buffer.from(Array.from({ length: random() % 48 }, (_, at) => random() % (at === 0 ? 24 : 256)));
    for (const kind of [Request, Answer]) {
      try {
        const value = decode(kind, noise);
        assert.deepEqual(decode(kind, encode(kind, value)), value);
      } catch (error) {
        assert.ok(error instanceof Garbled, `${noise.toString('hex')}: ${error.stack}`);
      }
    }
  }
});

test('numbers beyond 2^53 are exact', () => {
  const largest = 2n ** 64n - 1n;
  const payload = encode(Request, { Release: { number: largest } });
  assert.equal(payload.toString('hex'), '0bfdffffffffffffffff');
  assert.deepEqual(decode(Request, payload), { Release: { number: largest } });
});

test('a value that does not fit is refused before anything is sent, and never quoted', () => {
  for (const number of [-1, 1.5, NaN, 2 ** 53, 2n ** 64n, '1', null, undefined]) {
    assert.throws(() => encode(Request, { Release: { number } }), Invalid, String(number));
  }
  for (const token of [1, null, undefined, {}, 'lone \ud800 surrogate']) {
    assert.throws(() => encode(Request, { Hello: { protocol: 1, token } }), Invalid);
  }
  for (const request of ['NoSuch', 'Hello', { Idle: {} }, { Watch: {}, Idle: {} }, null, 7]) {
    assert.throws(() => encode(Request, request), Invalid);
  }
});

test('a frame comes together from any split', () => {
  const payloads = ['', 'a', 'two of them', 'x'.repeat(300)].map((text) => Buffer.from(text));
  const stream = Buffer.concat(payloads.map((payload) => frame(payload)));
  for (let split = 0; split <= stream.length; split += 1) {
    const frames = new Frames();
    const got = [stream.subarray(0, split), stream.subarray(split)].flatMap((piece) => [...frames.push(piece)]);
    assert.deepEqual(got, payloads, `split at ${split}`);
    assert.equal(frames.begun, false);
  }
  const frames = new Frames();
  assert.deepEqual([...stream].flatMap((byte) => [...frames.push(Buffer.from([byte]))]), payloads);
});

test('a frame at the limit passes, one past it does not, in both directions', () => {
  const longest = Buffer.alloc(MAX_FRAME, 1);
  assert.deepEqual([...new Frames().push(frame(longest))], [longest]);
  assert.throws(() => frame(Buffer.alloc(MAX_FRAME + 1)), TooLong);
});

test('what a header claims is not allocated', () => {
  const before = process.memoryUsage();
  const waiting = Array.from({ length: 1000 }, () => {
    const frames = new Frames();
    // A header that claims the most there may be, and one byte of it.
    assert.deepEqual([...frames.push(Buffer.from('0010000000', 'hex'))], []);
    assert.equal(frames.begun, true);
    return frames;
  });
  const now = process.memoryUsage();
  const grown = now.arrayBuffers + now.external - before.arrayBuffers - before.external;
  assert.ok(grown < 10 * MAX_FRAME, `${waiting.length} begun frames took ${grown} bytes`);
});
