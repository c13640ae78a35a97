// Reads the packed data: gzip of JSON as base64, each block decoded when it is first needed.

async function unpack(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

class Episodes {
  static async open() {
    return new Episodes(await unpack("episodes"));
  }

  constructor(index) {
    this.count = index.count;
    this.columns = index.columns;
    this.scale = index.scale;
    this.chunkSize = index.chunk;
    this.chunks = new Map(); // the few that were used last
    this.words = null;
  }

  async body(index) {
    const number = Math.floor(index / this.chunkSize);
    if (!this.chunks.has(number)) {
      if (this.chunks.size >= 8) this.chunks.delete(this.chunks.keys().next().value);
      this.chunks.set(number, unpack(`chunk-${number}`));
    }
    return (await this.chunks.get(number))[index % this.chunkSize];
  }

  vocabulary() {
    this.words ??= unpack("vocabulary");
    return this.words;
  }
}
