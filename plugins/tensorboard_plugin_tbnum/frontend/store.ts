/**
 * State in one place: who changes it says what changes, and what hangs on that is drawn again, in the order in which it
 * asked.
 */

type Watcher<S> = { keys: (keyof S)[]; changed: (keys: ReadonlySet<keyof S>) => void };

export class Store<S extends object> {
  #watchers: Watcher<S>[] = [];
  #changed = new Set<keyof S>();
  #notifying = false;

  constructor(readonly state: Readonly<S>) {}

  /** Calls `changed` whenever one of `keys` has another value: once for all that were set together. */
  watch<K extends keyof S>(keys: K[], changed: (keys: ReadonlySet<keyof S>) => void) {
    this.#watchers.push({ keys, changed });
  }

  /**
   * Sets values, and notifies those who watch them. What is equal is no change. What they set in turn follows when all
   * of them have heard of the first.
   */
  set(changes: Partial<S>) {
    for (const key of Object.keys(changes) as (keyof S)[]) {
      if (Object.is(this.state[key], changes[key])) continue;
      (this.state as S)[key] = changes[key] as S[keyof S];
      this.#changed.add(key);
    }
    if (this.#notifying) return;
    this.#notifying = true;
    try {
      while (this.#changed.size) {
        const keys = this.#changed;
        this.#changed = new Set();
        for (const watcher of this.#watchers) if (watcher.keys.some((key) => keys.has(key))) watcher.changed(keys);
      }
    } finally {
      this.#notifying = false;
    }
  }
}
