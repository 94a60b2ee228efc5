// Higher or lower: one episode of the game. It knows nothing of gRPC.

const MAX_GUESSES = 10;

export const description =
  'A whole number that is to be guessed, from 1 to `highest` (100): a call of `guess`, or the last number of a turn ' +
  'without one, is the guess, and the answer is higher or lower. Task: {"number": 42, "highest": 100}, both ' +
  'optional; without a number it is drawn from the seed. Reward of the turn that hits: 1, and a tenth less for each ' +
  'guess before. Metrics: guesses, solved.';

// What the policy may call in place of saying a number. JSON schemas describe the arguments.
export const tools = [
  {
    name: 'guess',
    description: 'Guess the number.',
    parameters: {
      type: 'object',
      properties: { number: { type: 'integer', description: 'a whole number' } },
      required: ['number'],
    },
  },
];

// What a policy thinks is no guess. The chat template may have begun a thought that ends here, and a thought may not end.
function withoutThoughts(said) {
  return said.replace(/<think>[^]*?(<\/think>|$)/g, '').split('</think>').at(-1);
}

export class InvalidTask extends Error {}

export class Game {
  // `task` is a plain object, `seed` a whole number below 2^53.
  constructor(task, seed) {
    const { number, highest = 100, ...others } = task;
    const unknown = Object.keys(others);
    if (unknown.length) throw new InvalidTask(`the task has no ${unknown[0]}; give {"number": 42, "highest": 100}`);
    if (!Number.isInteger(highest) || highest < 2) throw new InvalidTask('highest must be a whole number above 1');
    this.number = number ?? 1 + (scramble(seed) % highest);
    if (!Number.isInteger(this.number) || this.number < 1 || this.number > highest) {
      throw new InvalidTask(`number must be a whole number from 1 to ${highest}`);
    }
    this.highest = highest;
    this.guesses = 0;
    this.solved = false;
  }

  // What the policy reads before its first turn.
  firstWords() {
    return `I think of a whole number from 1 to ${this.highest}. Guess it: I answer higher or lower.`;
  }

  // Answers a text: { text }, and { text, reward, done } where something more is to be said of the turn.
  answer(said) {
    const found = withoutThoughts(said).match(/-?\d+/g);
    return this.guess(found ? Number(found[found.length - 1]) : null);
  }

  // Answers the call of a tool, in the same form. Its arguments fit the schema.
  call(name, { number }) {
    return this.guess(number);
  }

  guess(guess) {
    this.guesses += 1;
    this.solved = guess === this.number;
    if (this.solved) return { text: 'Right.', reward: 1 - (this.guesses - 1) / MAX_GUESSES, done: true };
    const hint = guess === null ? 'Say a whole number.' : guess < this.number ? 'Higher.' : 'Lower.';
    const done = this.guesses === MAX_GUESSES;
    return { text: done ? `${hint} It was ${this.number}.` : hint, done };
  }

  metrics() {
    return { guesses: this.guesses, solved: this.solved ? 1 : 0 };
  }
}

// The same number for the same seed, on every machine.
function scramble(seed) {
  let state = (BigInt(seed) + 0x9e3779b97f4a7c15n) & 0xffffffffffffffffn;
  state = ((state ^ (state >> 30n)) * 0xbf58476d1ce4e5b9n) & 0xffffffffffffffffn;
  return Number((state ^ (state >> 27n)) >> 16n) >>> 0;
}
