// What has arrived and was not taken yet, one at a time.

import { patiently } from './patience.mjs';

/** A line of things that come by themselves and are waited for. A failure comes behind all that arrived before it. */
export class Line {
  #arrived = [];
  #failure = null;
  #taker = null;

  push(thing) {
    this.#arrived.push(thing);
    this.#hand();
  }

  /** Puts this in the place of whatever nobody has taken yet. */
  replace(thing) {
    this.#arrived = [thing];
    this.#hand();
  }

  fail(error) {
    this.#failure ??= error;
    this.#hand();
  }

  /** The next thing, or the failure. */
  async next(patience) {
    return patiently(patience, (resolve, reject) => {
      this.#taker = { resolve, reject };
      this.#hand();
      return () => {
        this.#taker = null;
      };
    });
  }

  #hand() {
    const taker = this.#taker;
    if (!taker || (this.#arrived.length === 0 && !this.#failure)) return;
    // Before it is handed over: a second thing may come before the taker has woken, and must wait for the next.
    this.#taker = null;
    if (this.#arrived.length > 0) taker.resolve(this.#arrived.shift());
    else taker.reject(this.#failure);
  }
}
