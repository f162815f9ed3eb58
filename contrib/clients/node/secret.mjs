// Tokens, permits and answers: never printed, logged or serialised by accident.

const INSPECT = Symbol.for('nodejs.util.inspect.custom');

/** A text that only `expose()` gives out. */
export class Secret {
  #text;

  constructor(text) {
    if (typeof text !== 'string') throw new TypeError('a secret is a string');
    this.#text = text;
  }

  /** The text itself, for the one place that needs it. */
  expose() {
    return this.#text;
  }

  toString() {
    return 'Secret(redacted)';
  }

  toJSON() {
    return 'redacted';
  }

  [INSPECT]() {
    return 'Secret(redacted)';
  }
}

/** The text of a secret, or of a string that is to become one. */
export function exposed(secret) {
  return secret instanceof Secret ? secret.expose() : secret;
}
