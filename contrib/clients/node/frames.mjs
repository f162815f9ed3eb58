// Frames: a length of four bytes, big-endian, and so many bytes of payload.

import { Buffer } from 'node:buffer';
import { Garbled, TooLong } from './errors.mjs';

/** The first frame of a connection holds at most so many bytes. */
export const MAX_HELLO = 4 * 1024;

/** A frame holds at most so many bytes, in both directions. */
export const MAX_FRAME = 1024 * 1024;

const HEADER = 4;

/** A payload with its length in front. */
export function frame(payload, limit = MAX_FRAME) {
  if (payload.length > limit) {
    throw new TooLong(`the message has ${payload.length} bytes, and a frame holds at most ${limit}`);
  }
  const framed = Buffer.allocUnsafe(HEADER + payload.length);
  framed.writeUInt32BE(payload.length);
  framed.set(payload, HEADER);
  return framed;
}

/** Puts frames together from whatever pieces they come in. Holds only bytes that have come, never what a header claims. */
export class Frames {
  #limit;
  #pieces = [];
  #held = 0;
  #wanted = null;

  constructor(limit = MAX_FRAME) {
    this.#limit = limit;
  }

  /** The peer has sent a part of a frame and owes the rest. */
  get begun() {
    return this.#held > 0 || this.#wanted !== null;
  }

  /** Takes a piece; gives every payload that it completes. A header over the limit is `Garbled` at once. */
  *push(piece) {
    if (piece.length > 0) this.#pieces.push(piece);
    this.#held += piece.length;
    for (;;) {
      if (this.#wanted === null) {
        if (this.#held < HEADER) return;
        const length = this.#take(HEADER).readUInt32BE();
        if (length > this.#limit) {
          throw new Garbled(`a frame of ${length} bytes is announced, and at most ${this.#limit} are taken`);
        }
        this.#wanted = length;
      }
      if (this.#held < this.#wanted) return;
      const payload = this.#take(this.#wanted);
      this.#wanted = null;
      yield payload;
    }
  }

  #take(count) {
    this.#held -= count;
    const taken = [];
    let missing = count;
    let used = 0;
    while (missing > 0) {
      const piece = this.#pieces[used];
      if (piece.length > missing) {
        taken.push(piece.subarray(0, missing));
        this.#pieces[used] = piece.subarray(missing);
        missing = 0;
      } else {
        taken.push(piece);
        missing -= piece.length;
        used += 1;
      }
    }
    // Once for all of them: taking them off one by one would cost the square of their number.
    this.#pieces.splice(0, used);
    return taken.length === 1 ? taken[0] : Buffer.concat(taken, count);
  }
}
