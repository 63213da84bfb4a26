/** The attention map of one head, held as square tiles that are fetched when they are needed. */

import type { Range } from '../api/client';
import type { Tile } from '../draw/map';

/** Side of a tile in tokens: a text up to this long is one request. */
export const TILE = 512;

const HELD_TILES = 32;
const HELD_LINES = 64;

export type Load = (rows: Range, columns: Range) => Promise<Float32Array>;

export class Matrix {
  private readonly tiles = new Map<string, Tile>();
  private readonly lines = new Map<string, Float32Array>();
  private readonly underway = new Set<string>();

  /** `arrived` is called whenever more of the map is here, `failed` when a request is refused. */
  constructor(
    readonly layer: number,
    readonly head: number,
    readonly tokens: number,
    private readonly load: Load,
    private readonly arrived: () => void,
    private readonly failed: (error: unknown) => void,
  ) {}

  /** The tiles of a range of the map that are here; the others are asked for. */
  within(queries: Range, keys: Range): Tile[] {
    const found: Tile[] = [];
    for (let row = first(queries); row < queries.stop; row += TILE) {
      for (let column = first(keys); column < keys.stop; column += TILE) {
        const tile = this.tiles.get(`${row},${column}`);
        if (tile) found.push(tile);
        else this.fetchTile(row, column);
      }
    }
    return found;
  }

  /** The probability of one cell, if it is here. */
  value(query: number, key: number): number | undefined {
    const tile = this.tiles.get(`${query - (query % TILE)},${key - (key % TILE)}`);
    return tile?.values[(query % TILE) * tile.columns + (key % TILE)];
  }

  /** Where a query looks, (N,), if it is here; otherwise it is asked for. */
  row(query: number): Float32Array | undefined {
    return this.line('row', query, { start: query, stop: query + 1 }, this.all);
  }

  /** Who looks at a key, (N,), if it is here; otherwise it is asked for. */
  column(key: number): Float32Array | undefined {
    return this.line('column', key, this.all, { start: key, stop: key + 1 });
  }

  private get all(): Range {
    return { start: 0, stop: this.tokens };
  }

  private line(side: string, at: number, rows: Range, columns: Range): Float32Array | undefined {
    const name = `${side} ${at}`;
    const held = this.lines.get(name);
    if (held) return held;
    // In a text of one tile the line is a part of it, and will be here when the tile is.
    if (this.tokens <= TILE) {
      const tile = this.within(this.all, this.all)[0];
      if (!tile) return undefined;
      const count = this.tokens;
      const line = Float32Array.from({ length: count }, (_, other) =>
        side === 'row'
          ? (tile.values[at * count + other] as number)
          : (tile.values[other * count + at] as number),
      );
      keep(this.lines, name, line, HELD_LINES);
      return line;
    }
    this.fetchOnce(name, rows, columns, (values) => keep(this.lines, name, values, HELD_LINES));
    return undefined;
  }

  private fetchTile(firstQuery: number, firstKey: number): void {
    const rows = { start: firstQuery, stop: Math.min(firstQuery + TILE, this.tokens) };
    const columns = { start: firstKey, stop: Math.min(firstKey + TILE, this.tokens) };
    const name = `${firstQuery},${firstKey}`;
    this.fetchOnce(name, rows, columns, (values) => {
      const tile = {
        firstQuery,
        firstKey,
        rows: rows.stop - rows.start,
        columns: columns.stop - columns.start,
        values,
      };
      keep(this.tiles, name, tile, HELD_TILES);
    });
  }

  private fetchOnce(
    name: string,
    rows: Range,
    columns: Range,
    take: (values: Float32Array) => void,
  ): void {
    if (this.underway.has(name)) return;
    this.underway.add(name);
    this.load(rows, columns)
      .then((values) => {
        take(values);
        this.underway.delete(name);
        this.arrived();
      })
      // The name stays underway after a failure: drawing again must not ask again by itself.
      .catch(this.failed);
  }
}

/** Adds to a map of limited size; what was added first leaves first. */
function keep<T>(held: Map<string, T>, name: string, value: T, limit: number): void {
  held.set(name, value);
  if (held.size > limit) held.delete(held.keys().next().value as string);
}

function first(range: Range): number {
  return range.start - (range.start % TILE);
}
