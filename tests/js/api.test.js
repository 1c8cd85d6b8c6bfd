import assert from "node:assert/strict";
import { test } from "node:test";

import { Api, RouteError, Series, Unreachable, decodeArrays, revived } from "../../plugins/tensorboard_plugin_tbnum/frontend/api.ts";

/** A binary answer as `http_api.md` describes it. */
function packed(fields, arrays) {
  let offset = 0;
  const listed = arrays.map(([name, values]) => {
    const entry = { name, dtype: values.constructor.name.replace("Array", "").toLowerCase(), length: values.length, offset };
    offset += Math.ceil(values.byteLength / 8) * 8;
    return entry;
  });
  let header = JSON.stringify({ ...fields, arrays: listed });
  while ((4 + header.length) % 8) header += " ";
  const buffer = new ArrayBuffer(4 + header.length + offset);
  new DataView(buffer).setUint32(0, header.length, true);
  new Uint8Array(buffer, 4).set(new TextEncoder().encode(header));
  listed.forEach(({ offset: at }, index) => {
    const { buffer: from, byteOffset, byteLength } = arrays[index][1];
    new Uint8Array(buffer, 4 + header.length + at).set(new Uint8Array(from, byteOffset, byteLength));
  });
  return buffer;
}

const reduced = packed({ run: "a", version: "1", bucket_steps: 4, steps: 8, first_step: 0, last_step: 7 }, [
  ["step", Float64Array.of(0, 4)], ["step_last", Float64Array.of(3, 7)], ["wall_time", Float64Array.of(10, 14)],
  ["loss/min", Float32Array.of(1, NaN)], ["loss/max", Float32Array.of(9, NaN)], ["loss/last", Float32Array.of(2, NaN)],
  ["loss/nan", Uint32Array.of(0, 4)], ["loss/inf", Uint32Array.of(1, 0)], ["loss/known", Uint32Array.of(4, 0)],
]);

const exact = packed({ run: "a", version: "1", bucket_steps: 1, steps: 3, first_step: 0, last_step: 2 }, [
  ["step", Float64Array.of(0, 1, 2)], ["step_last", Float64Array.of(0, 1, 2)], ["wall_time", Float64Array.of(10, 11, 12)],
  ["loss", Float32Array.of(3, NaN, Infinity)],
]);

test("arrays of odd length are padded, and viewed in place", () => {
  const { arrays } = decodeArrays(packed({}, [["a", Float32Array.of(1, 2, 3)], ["b", Float64Array.of(4)]]));
  assert.deepEqual([...arrays.get("a")], [1, 2, 3]);
  assert.deepEqual([...arrays.get("b")], [4]);
});

test("a torn answer is an error, not an empty chart", () => {
  assert.throws(() => decodeArrays(new ArrayBuffer(2)), RangeError);
  assert.throws(() => decodeArrays(reduced.slice(0, 40)), RangeError);
  assert.throws(() => decodeArrays(reduced.slice(0, reduced.byteLength - 8)), RangeError);
  assert.throws(() => decodeArrays(packed({}, [["a", new Int8Array(3)]])), /int8/);
});

test("exact series give values as they are, reduced ones their extremes and counts", () => {
  const plain = new Series(exact);
  assert.ok(plain.exact);
  assert.deepEqual([...plain.line("loss").last], [3, NaN, Infinity]);
  const buckets = new Series(reduced);
  assert.equal(buckets.bucketSteps, 4);
  const line = buckets.line("loss");
  assert.deepEqual([[...line.min], [...line.max], [...line.nan], [...line.inf]], [[1, NaN], [9, NaN], [0, 4], [1, 0]]);
  assert.equal(buckets.line("grad_norm"), null);
});

test("texts for non-finite numbers become numbers, and other texts stay", () => {
  assert.deepEqual(["NaN", "Infinity", "-Infinity", "nan", 3, null].map(revived), [NaN, Infinity, -Infinity, "nan", 3, null]);
});

/** @param {(url: URL, init: any) => Response} answer */
const apiOf = (answer) => {
  const asked = [];
  const api = new Api(new URL("http://host/prefix/data/plugin/tbnum/"), async (url, init) => {
    asked.push({ url: new URL(url), init });
    return answer(new URL(url), init);
  });
  return { api, asked };
};

test("an unchanged answer is the same object, asked for by its ETag", async () => {
  const { api, asked } = apiOf((_, init) => (init.headers?.["If-None-Match"] === '"x"'
    ? new Response(null, { status: 304 })
    : Response.json({ version: "1", events: [{ data: { loss: "NaN" } }] }, { headers: { ETag: '"x"' } })));
  const first = await api.events("a b&c/#");
  assert.ok(Number.isNaN(first.events[0].data.loss));
  assert.equal(await api.events("a b&c/#"), first);
  assert.equal(asked[0].url.pathname, "/prefix/data/plugin/tbnum/events");
  assert.equal(asked[0].url.searchParams.get("run"), "a b&c/#");
});

test("events that are known are not sent again, and an earlier one may read otherwise with hindsight", async () => {
  const answers = [
    { version: "1", unchanged: 0, events: [{ step: 1 }, { step: 2, cause: null }] },
    { version: "1", unchanged: 2, events: [] },
    { version: "2", unchanged: 1, events: [{ step: 2, cause: "bad_batch" }, { step: 3 }] },
    { version: "3", unchanged: 0, events: [{ step: 9 }] },
  ];
  const { api, asked } = apiOf(() => Response.json(answers.shift()));
  const first = await api.events("a");
  assert.equal(await api.events("a"), first);
  const { events } = await api.events("a");
  assert.deepEqual(events.map(({ step, cause }) => [step, cause]), [[1, undefined], [2, "bad_batch"], [3, undefined]]);
  assert.equal(events[0], first.events[0]);
  assert.deepEqual((await api.events("b")).events.map(({ step }) => step), [9]);
  assert.deepEqual(asked.map(({ url }) => url.searchParams.get("since")), [null, "1", "1", null]);
});

test("columns with commas, and the interval, travel as they are", async () => {
  const { api, asked } = apiOf(() => new Response(exact));
  await api.series("r", { columns: ["loss", "a,b/grad_norm"], from: 5, to: 9, buckets: 1024 });
  assert.deepEqual(asked[0].url.searchParams.getAll("column"), ["loss", "a,b/grad_norm"]);
  assert.equal(asked[0].url.searchParams.get("from"), "5");
});

test("a refusal carries the server's reason, and silence is not taken for one", async () => {
  const refused = apiOf(() => Response.json({ error: "no run 'x'" }, { status: 404 }));
  await assert.rejects(refused.api.run("x"), (error) => error instanceof RouteError && error.status === 404 && error.message === "no run 'x'");
  const silent = apiOf(() => { throw new TypeError("Failed to fetch"); });
  await assert.rejects(silent.api.runs(), Unreachable);
});
