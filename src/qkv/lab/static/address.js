// An address holds the whole state: in its query where that is short, packed behind the # where it is long.
const LONG = 6000;

export async function pack(path, query) {
  if (query.length < LONG) return query ? `${path}?${query}` : path;
  const packed = new Uint8Array(
    await new Response(new Blob([query]).stream().pipeThrough(new CompressionStream("deflate-raw"))).arrayBuffer(),
  );
  let signs = "";
  for (let start = 0; start < packed.length; start += 8192) signs += String.fromCharCode(...packed.subarray(start, start + 8192));
  return `${path}#z=${btoa(signs).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

export async function unpack(place) {
  if (!place.hash.startsWith("#z=")) return Object.fromEntries(new URLSearchParams(place.search));
  try {
    const signs = atob(place.hash.slice(3).replaceAll("-", "+").replaceAll("_", "/"));
    const packed = Uint8Array.from(signs, (sign) => sign.charCodeAt(0));
    const query = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).text();
    return Object.fromEntries(new URLSearchParams(query));
  } catch {
    return null; // an address that was cut
  }
}
