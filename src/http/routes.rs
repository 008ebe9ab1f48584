//! The table of all routes: method, path, required scope, handler. The router and the OpenAPI
//! document are both made from this table, so that they cannot differ.

use super::chunk_hashes::ChunkHashesJson;
use super::cost::CostClass::{Light, Open, Upload};
use super::refresh::IssuedTokenJson;
use super::route::{Content, Route};
use super::sha256::Sha256Json;
use super::wire::{FileKeysJson, GrantJson, GrantRequestJson, ReadyJson, ReconstructionV1Json};
use super::wire::{RegisteredJson, StatusJson, UploadedJson};
use super::{AppState, chunk_hashes, chunks, files, grants, health, hub, listing, openapi, schema};
use super::{reconstructions, refresh, removal, sha256, shards, transfer, usage, xorbs};
use crate::service::access::Scope::{Admin, Read, Write};
use crate::wire::{
    BatchJson, ChunksJson, FilesPage, ReconstructionV2Json, RemovedFile, UsagePage, WasInsertedJson, XorbsPage,
};

/// All routes that exist with these settings.
pub(super) fn routes(state: &AppState) -> Vec<Route> {
    let mut routes = vec![for_people(), for_writers(), for_readers(), for_lists(), for_operators()];
    if state.shared.grants {
        routes.push(for_granted());
    }
    if state.shared.hub {
        routes.push(hub::routes(state));
    }
    routes.into_iter().flatten().collect()
}

/// The routes of xorbs for people and curl, and one by which old Xet clients check whether a xorb
/// exists.
fn for_people() -> Vec<Route> {
    // The parameters and responses of a route that serves chunks of a xorb.
    let parts = |route: Route| {
        route
            .query("range", "chunks: A-B (B not included), A-, -N for the last N, or A; all if not given")
            .of(schema::form("^([0-9]+-[0-9]*|-[0-9]+|[0-9]+)$"))
            .query("format", "xorb for stored records (the default), raw for decompressed bytes")
            .of(schema::one_of(["xorb", "raw"]))
            .header("range", "bytes of what the parameters select, as in RFC 9110")
            .responses(200, "the chunks", octets())
            .responses(206, "the bytes of the Range header", octets())
            .responses(206, "the bytes of its ranges, where there are several", multipart())
            .responses(304, "not modified (If-None-Match)", None)
            .fails(&[404, 412, 416])
    };
    vec![
        Route::post("/xorbs/{hash}", Write, xorbs::upload)
            .costs(Upload)
            .says("Store a xorb of at most 64 MiB")
            .takes(octets())
            .responses(201, "stored", Content::json::<UploadedJson>())
            .responses(200, "already stored", Content::json::<UploadedJson>()),
        parts(Route::get("/xorbs/{hash}", Read, xorbs::download).costs(Light).also(&["/v1/xorbs/{prefix}/{hash}"]))
            .says("Chunks of a xorb; for tokens of all repositories"),
        Route::get("/xorbs/{hash}/chunks", Read, xorbs::list_chunks)
            .says("Chunk list of a xorb; for tokens of all repositories")
            .responses(200, "every chunk", Content::json::<ChunksJson>())
            .fails(&[404]),
        Route::head("/xorb/{prefix}/{hash}", Read, xorbs::download)
            .costs(Light)
            .also(&["/xorbs/{prefix}/{hash}"])
            .says("Whether a xorb exists, for clients before 1.3.0")
            .responses(200, "stored", None)
            .responses(304, "not modified (If-None-Match)", None)
            .fails(&[404, 412, 416]),
    ]
}

/// The routes for Xet clients that upload. The path segment `prefix` is `default` or
/// `default-merkledb`; the server ignores it (spec 9, row 1). Paths in `also` are for older clients
/// (spec 5.0).
fn for_writers() -> Vec<Route> {
    vec![
        Route::post("/v1/xorbs/{prefix}/{hash}", Write, xorbs::upload_xet)
            .costs(Upload)
            .also(&["/xorbs/{prefix}/{hash}", "/xorb/{prefix}/{hash}"])
            .says("Store a xorb, for Xet clients")
            .takes(octets())
            .responses(200, "stored now or before", Content::json::<WasInsertedJson>()),
        Route::post("/v1/shards", Write, shards::register)
            .costs(Upload)
            .also(&["/shards", "/shard/{prefix}/{hash}"])
            .says("Register the files of a shard")
            .takes(octets())
            .responses(200, "registered now or before", Content::json::<RegisteredJson>()),
        Route::put("/shard/{prefix}/{hash}", Write, shards::register)
            .costs(Upload)
            .says("Register the files of a shard, for clients before 1.1.10")
            .takes(octets())
            .responses(200, "registered now or before", Content::json::<RegisteredJson>()),
        Route::post("/v2/shards", Write, shards::register_events)
            .costs(Upload)
            .says("Register the files of a shard, with a line of JSON per event")
            .takes(octets())
            .responses(200, "events; the last one is the result", Content::bytes("application/x-ndjson")),
        Route::get("/v1/chunks/{prefix}/{hash}", Read, chunks::find)
            .also(&["/chunks/{prefix}/{hash}", "/chunk/{prefix}/{hash}"])
            .says("A shard that names the xorb of a chunk")
            .responses(200, "the shard", octets())
            .fails(&[404]),
        Route::delete("/v1/files/{file}", Write, removal::file)
            .costs(Light)
            .says("Remove the repository's claim to a file; the last claim removes the file")
            .query(
                "repo",
                "the repository whose claim is removed; without it an admin token for all repositories \
                removes all claims",
            )
            .responses(200, "removed", Content::json::<RemovedFile>())
            .fails(&[403, 404]),
        Route::get("/v1/token", None, refresh::refresh)
            .costs(Open)
            .audited()
            .says("A new token of the repository and scope of the refresh token in Authorization")
            .responses(200, "the token", Content::json::<IssuedTokenJson>())
            .fails(&[401]),
        Route::post("/v1/telemetry", Read, chunks::telemetry)
            .costs(Light)
            .says("Counted and dropped")
            .responses(200, "dropped", None),
    ]
}

/// The routes of upload grants, for Xet clients from 1.8.0 on. These clients request a grant before
/// each upload. Without the routes, a 404 tells them to upload directly.
fn for_granted() -> Vec<Route> {
    vec![
        Route::post("/v1/xorb-grants/{prefix}/{hash}", Write, grants::ask)
            .costs(Light)
            .says("Request an upload grant for a xorb")
            .takes(Content::json::<GrantRequestJson>())
            .responses(201, "a grant: send the bytes to its URL, then commit it", Content::json::<GrantJson>())
            .responses(200, "the xorb is already stored; no upload needed", Content::json::<WasInsertedJson>())
            .fails(&[404, 507]),
        Route::put("/v1/grants/{xorb}", None, grants::send)
            .costs(Upload)
            .says("Upload the bytes of a grant, with the granted Content-Length, to its signed URL")
            .query("s", "the signature")
            .required()
            .takes(octets())
            .responses(200, "received; commit the grant", None)
            .fails(&[403, 412]),
        Route::post("/v1/xorb-commits/{prefix}/{hash}/grant/{id}", Write, grants::commit)
            .costs(Light)
            .says("Store the bytes of a grant")
            .responses(200, "stored", None)
            .fails(&[403, 404, 507]),
    ]
}

/// The routes for Xet clients that download.
fn for_readers() -> Vec<Route> {
    const FILE_RANGE: &str = "bytes=A-B, inclusive, of the file";
    vec![
        Route::get("/v1/reconstructions", Read, reconstructions::batch_get)
            .also(&["/reconstructions"])
            .says("Reconstructions of several files")
            .query("file_id", "hash of a file; may be given several times")
            .of(schema::hashes(reconstructions::MAX_QUERY_COUNT))
            .responses(200, "all of them", Content::json::<BatchJson>())
            .fails(&[404]),
        Route::post("/v1/reconstructions", Read, reconstructions::batch_post)
            .costs(Light)
            .says("Reconstructions of several files, by a JSON list")
            .takes(Content::json::<FileKeysJson>())
            .responses(200, "all of them", Content::json::<BatchJson>())
            .fails(&[404]),
        Route::get("/v1/reconstructions/{file}", Read, reconstructions::v1)
            .also(&["/reconstructions/{file}", "/reconstruction/{file}"])
            .says("Reconstruction of a file, with a URL for each run of chunks")
            .header("range", FILE_RANGE)
            .of(schema::byte_range())
            .query("chunk_byte_sizes", "true: include the raw length of each chunk, for ranges up to 1 GiB")
            .responses(200, "its terms", Content::json::<ReconstructionV1Json>())
            .fails(&[404, 416]),
        Route::get("/v2/reconstructions/{file}", Read, reconstructions::v2)
            .says("Reconstruction of a file, with a URL for each xorb")
            .header("range", FILE_RANGE)
            .of(schema::byte_range())
            .query("chunk_byte_sizes", "true: include the raw length of each chunk, for ranges up to 1 GiB")
            .responses(200, "its terms", Content::json::<ReconstructionV2Json>())
            .fails(&[404, 416]),
        Route::get("/v2/file-chunk-hashes/{file}", Read, chunk_hashes::find)
            .costs(Light)
            .says("Chunk hashes that a client needs to edit a file in place")
            .header("x-range-dirty", "bytes=A-B,C-D: the bytes that will change, inclusive")
            .of(schema::closed_byte_ranges())
            .required()
            .responses(200, "the windows to rechunk, and a summary of the rest", Content::json::<ChunkHashesJson>())
            .fails(&[404]),
        Route::get("/v1/files/{file}", Read, files::read)
            .costs(Light)
            .says("The bytes of a file")
            .header("range", "bytes of the file, as in RFC 9110")
            .responses(200, "the file", octets())
            .responses(206, "the bytes of the Range header", octets())
            .responses(206, "the bytes of its ranges, where there are several", multipart())
            .responses(304, "not modified (If-None-Match)", None)
            .fails(&[404, 412, 416]),
        Route::get("/v1/data/{xorb}", None, transfer::data)
            .costs(Light)
            .says("Bytes of a xorb, by a signed URL from a reconstruction")
            .query("s", "the signature")
            .required()
            .header("range", "one of the signed ranges, or all of them in order")
            .of(schema::closed_byte_ranges())
            .required()
            .responses(206, "the bytes", octets())
            .responses(206, "the bytes of its ranges, where there are several", multipart())
            .fails(&[403, 404]),
    ]
}

/// The routes for lists and lookups.
fn for_lists() -> Vec<Route> {
    vec![
        Route::get("/v1/files", Read, listing::files)
            .says("The files that the token may read, paged")
            .query("after", "the `next` of the previous page")
            .of(schema::hash())
            .query("limit", "entries on a page, 1000 at most")
            .of(schema::count())
            .responses(200, "a page", Content::json::<FilesPage>()),
        Route::get("/v1/xorbs", Read, listing::xorbs)
            .says("All xorbs, paged; for tokens of all repositories")
            .query("after", "the `next` of the previous page")
            .of(schema::hash())
            .query("limit", "entries on a page, 1000 at most")
            .of(schema::count())
            .responses(200, "a page", Content::json::<XorbsPage>())
            .fails(&[403]),
        Route::get("/v1/usage", Read, usage::usage)
            .says("Usage and quota of the token's repository, or of each repository for an admin token of all")
            .query("repo", "only this repository")
            .query("after", "the `next` of the previous page")
            .query("limit", "entries on a page, 1000 at most")
            .of(schema::count())
            .responses(200, "a page", Content::json::<UsagePage>())
            .fails(&[403]),
        Route::get("/v1/sha256/{digest}", Read, sha256::find)
            .says("The file with this sha256")
            .responses(200, "its hash, and whether the claim is verified", Content::json::<Sha256Json>())
            .fails(&[404]),
    ]
}

/// The routes for operators.
fn for_operators() -> Vec<Route> {
    vec![
        Route::get("/healthz", None, health::live).costs(Open).says("Liveness probe: the process responds").responses(
            200,
            "alive",
            Content::json::<StatusJson>(),
        ),
        Route::get("/readyz", None, health::ready).costs(Open).says("Readiness probe: store and index work").responses(
            200,
            "ready",
            Content::json::<ReadyJson>(),
        ),
        Route::get("/metrics", Admin, health::metrics)
            .costs(Light)
            .says("Metrics for Prometheus (OpenMetrics text); for tokens of all repositories")
            .responses(200, "OpenMetrics", Content::bytes("application/openmetrics-text")),
        Route::get("/openapi.json", None, openapi::document(routes)).costs(Open).says("This document").responses(
            200,
            "OpenAPI 3",
            Content::json::<serde_json::Value>(),
        ),
    ]
}

fn multipart() -> Content {
    Content::bytes("multipart/byteranges")
}

fn octets() -> Content {
    Content::bytes("application/octet-stream")
}
