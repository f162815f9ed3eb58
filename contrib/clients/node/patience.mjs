// A deadline and an AbortSignal on everything that waits.

import { Aborted, HermesError, Invalid, TimedOut } from './errors.mjs';

/** How long a backend may take to answer, if the caller does not say. */
export const DEADLINE_MS = 5_000;

/** The longest that a timer takes. */
const LONGEST_MS = 2 ** 31 - 1;

/**
 * Waits for what `begin(resolve, reject)` starts; it may return what to do when the wait is given up. `deadlineMs` null or
 * Infinity waits without end. Whatever was begun is over, or given up, when this settles.
 */
export function patiently({ deadlineMs = DEADLINE_MS, signal, what = 'the backend did not answer' }, begin) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(aborted(signal));
    const limit = deadlineMs ?? Infinity;
    if (typeof limit !== 'number' || !(limit >= 0)) return reject(new Invalid('deadlineMs is a number of milliseconds'));
    let timer;
    let giveUp;
    let over = false;
    const end = (settle) => (value) => {
      if (over) return;
      over = true;
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
      settle(value);
    };
    const done = end(resolve);
    const failed = end(reject);
    const stop = (error) => {
      if (over) return;
      failed(error);
      giveUp?.(error);
    };
    const onAbort = () => stop(aborted(signal));
    signal?.addEventListener('abort', onAbort, { once: true });
    if (limit <= LONGEST_MS) timer = setTimeout(() => stop(new TimedOut(`${what} within ${limit} ms`)), limit);
    try {
      giveUp = begin(done, failed);
    } catch (error) {
      failed(error);
    }
    if (over) giveUp = undefined;
  });
}

/** Pauses; ends early only by the signal. */
export function pause(ms, signal) {
  return patiently({ deadlineMs: null, signal }, (resolve) => {
    const timer = setTimeout(resolve, ms);
    return () => clearTimeout(timer);
  });
}

/** One deadline for several waits: what is left of it, at every look. */
export function countdown(deadlineMs = DEADLINE_MS) {
  const end = performance.now() + (deadlineMs ?? Infinity);
  return () => Math.max(0, end - performance.now());
}

export function aborted(signal) {
  if (signal.reason instanceof HermesError) return signal.reason;
  return new Aborted('the call was aborted', { cause: signal.reason });
}
