/** Where the map lies in its card: how large it may be, what fits, and how far it is scrolled. */

import {
  contentSize,
  fittedZoom,
  layoutMap,
  type MapLayout,
  type Scroll,
  type Space,
  zoomsOf,
} from '../../draw/layout';
import { shorten } from '../../draw/map';
import { placesIn, type Place } from '../../draw/tiles';

/** CSS pixels that the longest name may take. */
const NAME_WIDTH = 112;
/** More names than this are not measured: they never fit beside their cells. */
const MOST_NAMES = 2000;
/** CSS pixels below the map: its buttons, the border of its card. */
const BELOW = 72;
/** The map is never smaller, however little of the screen is left. */
const LEAST_HEIGHT = 320;
const MOST_HEIGHT = 1200;

export interface Asked {
  names: readonly string[];
  zoom: number | null;
  family: string;
  /** CSS width that the map may take. */
  width: number;
}

export class Frame {
  /** CSS pixels of the page above the map. */
  above = $state(300);
  ratio = $state(devicePixelRatio);
  private windowHeight = $state(innerHeight);
  private x = $state(0);
  private y = $state(0);

  private readonly asked: () => Asked;

  constructor(asked: () => Asked) {
    this.asked = asked;
  }

  private readonly measured = $derived.by(() => {
    const { names, family } = this.asked();
    if (names.length > MOST_NAMES) return { names, width: NAME_WIDTH };
    const context = document.createElement('canvas').getContext('2d') as CanvasRenderingContext2D;
    context.font = `12px ${family}`;
    const shown = names.map((name) => shorten(context, name, NAME_WIDTH));
    return { names: shown, width: Math.max(0, ...shown.map((name) => context.measureText(name).width)) };
  });
  private readonly most = $derived(Math.max(LEAST_HEIGHT, Math.min(this.windowHeight - this.above - BELOW, MOST_HEIGHT)));
  private readonly space: Space = $derived.by(() => ({
    tokens: Math.max(1, this.asked().names.length),
    width: this.asked().width,
    height: this.most,
    ratio: this.ratio,
    zoom: this.asked().zoom,
    nameWidth: this.measured.width,
  }));

  readonly layout: MapLayout = $derived(layoutMap(this.space));
  /** Names as the axes have room for them. */
  readonly shown: readonly string[] = $derived(this.measured.names);
  /** CSS size of all of the map, and of the part that is in sight. */
  readonly content = $derived(contentSize(this.layout));
  readonly width = $derived.by(() => Math.max(0, Math.min(this.asked().width, Math.ceil(this.content.width))));
  readonly height = $derived(Math.min(this.most, Math.ceil(this.content.height)));
  /** Whether some of the map is out of sight. */
  readonly larger = $derived(this.content.width > this.width + 1 || this.content.height > this.height + 1);
  /** In device pixels. */
  readonly scroll: Scroll = $derived({ x: Math.round(this.x * this.ratio), y: Math.round(this.y * this.ratio) });
  /** The tiles in sight. */
  readonly places: Place[] = $derived(
    placesIn(this.layout, this.scroll, this.width * this.ratio, this.height * this.ratio),
  );

  resized(): void {
    [this.windowHeight, this.ratio] = [innerHeight, devicePixelRatio];
  }

  scrolled(x: number, y: number): void {
    [this.x, this.y] = [x, y];
  }

  /** The zoom that many steps away, or null where there is none or all of the map would be smaller than fitted. */
  next(by: number): number | null {
    const zooms = zoomsOf(this.space.tokens);
    const zoom = zooms[zooms.indexOf(this.layout.zoom) + by];
    return zoom === undefined || zoom < fittedZoom(this.space) ? null : zoom;
  }
}
