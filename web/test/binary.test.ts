import { describe, expect, it } from 'vitest';
import { arrayOf, bytesOf, decode, floatsOf, integersOf } from '../src/api/binary';

/** What unmask.explorer.wire.binary.pack wrote for codes [[0, 1, 255]], keys [-1, 7], values [[0.5], [0.25]]. */
const PACKED =
  'VU1LMsgAAAB7ImFycmF5cyI6W3sibmFtZSI6ImNvZGVzIiwiZHR5cGUiOiJ1MSIsInNoYXBlIjpbMSwzXSwib2Zmc2V0IjowfSx7Im5hbWUi' +
  'OiJrZXlzIiwiZHR5cGUiOiJpNCIsInNoYXBlIjpbMl0sIm9mZnNldCI6OH0seyJuYW1lIjoidmFsdWVzIiwiZHR5cGUiOiJmNCIsInNoYXBl' +
  'IjpbMiwxXSwib2Zmc2V0IjoxNn1dLCJtZXRhIjp7ImNlbGwiOjR9fSAgICAgIAAB/wAAAAAA/////wcAAAAAAAA/AACAPg==';

function packed(): ArrayBuffer {
  return Uint8Array.from(atob(PACKED), (character) => character.charCodeAt(0)).buffer;
}

describe('arrays of the server', () => {
  it('come back as they were packed', () => {
    const answer = decode<{ cell: number }>(packed());
    expect(answer.meta.cell).toBe(4);
    expect([...bytesOf(answer, 'codes').data]).toEqual([0, 1, 255]);
    expect(bytesOf(answer, 'codes').shape).toEqual([1, 3]);
    expect([...integersOf(answer, 'keys').data]).toEqual([-1, 7]);
    expect([...floatsOf(answer, 'values').data]).toEqual([0.5, 0.25]);
    expect(floatsOf(answer, 'values').shape).toEqual([2, 1]);
  });

  it('are refused where they are missing, of another type or cut short', () => {
    const answer = decode(packed());
    expect(() => arrayOf(answer, 'edges')).toThrow(RangeError);
    expect(() => floatsOf(answer, 'codes')).toThrow('float32');
    expect(() => bytesOf(answer, 'values')).toThrow('uint8');
    expect(() => integersOf(answer, 'values')).toThrow('int32');
    for (const length of [0, 7, 100, packed().byteLength - 1]) {
      expect(() => decode(packed().slice(0, length))).toThrow(RangeError);
    }
  });
});
