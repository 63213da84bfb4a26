/** The tiles of one map, fetched a few at a time, those in sight first. */

import { Refused } from '../api/source';
import type { Problem } from '../api/types';
import { nameOf, type Place, type Tile } from '../draw/tiles';

const AT_ONCE = 3;
const MOST_TILES = 160;

export class Tiles {
  readonly here = new Map<string, Tile>();
  /** Counts arrivals: whatever draws tiles depends on it. */
  arrivals = $state(0);
  problem: Problem | null = $state.raw(null);
  private wanted: Place[] = [];
  private readonly underway = new Set<string>();
  private readonly failed = new Set<string>();

  /** `key` says what the map shows: two of one key are the same. */
  constructor(
    readonly key: string,
    private readonly fetchTile: (place: Place) => Promise<Tile>,
  ) {}

  /** Asks for tiles, the first ones first; what was asked for before and not begun is forgotten. */
  want(places: readonly Place[]): void {
    this.wanted = places.filter((place) => {
      const name = nameOf(place);
      return !this.here.has(name) && !this.underway.has(name) && !this.failed.has(name);
    });
    this.begin();
  }

  /** Tiles of these places that are here. */
  among(places: readonly Place[]): Tile[] {
    return places.flatMap((place) => this.here.get(nameOf(place)) ?? []);
  }

  private begin(): void {
    while (this.underway.size < AT_ONCE && this.wanted.length > 0) {
      const place = this.wanted.shift() as Place;
      const name = nameOf(place);
      this.underway.add(name);
      this.fetchTile(place).then(
        (tile) => {
          this.underway.delete(name);
          this.here.set(name, tile);
          if (this.problem?.kind === 'NotSaved') this.problem = null;
          if (this.here.size > MOST_TILES) this.here.delete(this.here.keys().next().value as string);
          this.arrivals++;
          this.begin();
        },
        (error: unknown) => {
          this.underway.delete(name);
          // Drawing again must not ask again by itself.
          this.failed.add(name);
          // A saved page lacks finer tiles now and then; coarser ones stand in for them.
          const covered = this.here.size > 0 && error instanceof Refused && error.problem.kind === 'NotSaved';
          if (error instanceof Refused && !covered) this.problem = error.problem;
          this.begin();
        },
      );
    }
  }
}
