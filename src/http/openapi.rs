//! The OpenAPI document of all routes. It is made from the same table as the router, so that it
//! cannot differ from it.

use std::collections::{BTreeMap, HashSet};
use std::future::{Ready, ready};
use std::sync::{Arc, OnceLock};

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ComponentsBuilder, Schema};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Content as MediaType, InfoBuilder, OpenApi, OpenApiBuilder, PathItem, PathsBuilder, RefOr, Required,
    ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use super::origin::BaseUrl;
use super::route::{Content, Route, name_of};
use super::wire::ProblemJson;
use super::{AppState, Auth, schema};
use crate::wire::HashText;

/// Name of the security scheme in the document.
const TOKEN: &str = "token";

/// The handler of `GET /openapi.json`, which describes these routes. Only the URL of the server
/// differs between requests. Everything else is made at the first request.
pub(super) fn document(
    routes: fn(&AppState) -> Vec<Route>,
) -> impl Fn(State<AppState>, BaseUrl) -> Ready<Response> + Clone + Send + Sync + 'static {
    let made = Arc::new(OnceLock::new());
    move |State(state), BaseUrl(base)| {
        let text: &String = made.get_or_init(|| {
            serde_json::to_string(&describe(routes(&state), state.shared.auth))
                .expect("values with string keys can be serialized")
        });
        // Inserts the URL into the serialized object.
        let members = text.strip_prefix('{').unwrap_or(text);
        let text = format!(r#"{{"servers":[{{"url":{}}}],{members}"#, Value::from(base));
        ready(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response())
    }
}

/// The document without the URL of the server.
fn describe(routes: Vec<Route>, auth: Auth) -> OpenApi {
    let mut schemas: BTreeMap<String, RefOr<Schema>> = BTreeMap::new();
    schemas.insert(ProblemJson::name().into_owned(), ProblemJson::schema());
    schemas.insert(HashText::name().into_owned(), HashText::schema());
    let heads: HashSet<&str> =
        routes.iter().filter(|route| route.method == HttpMethod::Head).flat_map(|route| route.paths.clone()).collect();
    let mut paths = PathsBuilder::new();
    for route in &routes {
        for content in route.responses.iter().filter_map(|response| response.content.as_ref()).chain(&route.body) {
            schemas.extend(content.components.iter().cloned());
        }
        for (index, path) in route.paths.iter().enumerate() {
            // axum serves HEAD with the handler of GET, unless HEAD has a route of its own.
            let mut methods = vec![route.method.clone()];
            if route.method == HttpMethod::Get && !heads.contains(path) {
                methods.push(HttpMethod::Head);
            }
            for method in methods {
                let operation = operation(route, &method, path, index > 0, auth);
                paths = paths.path(*path, PathItem::new(method, operation));
            }
        }
    }
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("from `zorb token issue`"));
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme(TOKEN, SecurityScheme::Http(bearer.build()))
        .build();
    let info = InfoBuilder::new()
        .title("zorb")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("A self-hosted content-addressed store for the Xet protocol"))
        .build();
    OpenApiBuilder::new().info(info).paths(paths).components(Some(components)).build()
}

/// The description of one method of one path. `is_alias` says that another path of the same route
/// comes first.
fn operation(route: &Route, method: &HttpMethod, path: &str, is_alias: bool, auth: Auth) -> OperationBuilder {
    let id = operation_id(name_of(method), path);
    let mut operation = OperationBuilder::new().summary(Some(route.summary)).operation_id(Some(id));
    // A response to HEAD has the headers of a response to GET, and no body.
    let is_head = *method == HttpMethod::Head;
    if is_alias {
        operation = operation.description(Some(format!("Same as `{}`.", route.paths.first().unwrap_or(&path))));
    } else if is_head && route.method == HttpMethod::Get {
        operation = operation.description(Some("Same as GET, without the body."));
    }
    for name in path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name) {
        let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path).required(Required::True);
        let (description, schema) = path_parameter(name);
        operation = operation.parameter(parameter.description(Some(description)).schema(Some(schema)));
    }
    for parameter in &route.parameters {
        let place = if parameter.is_header { ParameterIn::Header } else { ParameterIn::Query };
        let required = if parameter.is_required { Required::True } else { Required::False };
        let built = ParameterBuilder::new().name(parameter.name).parameter_in(place).required(required);
        operation =
            operation.parameter(built.description(Some(parameter.description)).schema(Some(parameter.schema.clone())));
    }
    if let Some(body) = &route.body {
        let body = RequestBodyBuilder::new().content(body.media_type, media_type(body)).required(Some(Required::True));
        operation = operation.request_body(Some(body.build()));
    }
    let mut responses: BTreeMap<u16, ResponseBuilder> = BTreeMap::new();
    for declared in &route.responses {
        // Responses of the same status may have different media types.
        let known = responses.remove(&declared.status);
        let mut response = known.unwrap_or_else(|| ResponseBuilder::new().description(declared.description));
        if let Some(content) = declared.content.as_ref().filter(|_| !is_head) {
            response = response.content(content.media_type, media_type(content));
        }
        responses.insert(declared.status, response);
    }
    let problem = Content::json::<ProblemJson>();
    for status in route.failures(auth) {
        let title = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
        let mut response = ResponseBuilder::new().description(title.unwrap_or_default());
        if !is_head {
            response = response.content("application/problem+json", media_type(&problem));
        }
        responses.insert(status, response);
    }
    for (status, response) in responses {
        operation = operation.response(status.to_string(), response);
    }
    match (route.needs, auth) {
        (Some(scope), Auth::Tokens) => operation.security(SecurityRequirement::new(TOKEN, [scope.to_string()])),
        _ => operation.securities(Some([])),
    }
}

fn media_type(content: &Content) -> MediaType {
    MediaType::new(Some(content.schema.clone()))
}

/// Description and schema of a path parameter.
fn path_parameter(name: &str) -> (&'static str, RefOr<Schema>) {
    match name {
        "hash" | "xorb" => ("64 hex digits, in the protocol's text form", schema::hash()),
        "id" => ("the id of a grant", schema::form("^[A-Za-z0-9_-]+$")),
        "file" => ("64 hex digits: the hash of a file", schema::hash()),
        "digest" => ("64 hex digits, as sha256sum prints them", schema::hash()),
        "prefix" => ("any value; clients send `default` or `default-merkledb`", schema::form("^[^/]+$")),
        _ => ("text", schema::text()),
    }
}

/// A name for generated clients: the words of the method and the path, joined with `_`.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split('/').filter(|word| !word.is_empty()).map(|word| {
        let name = word.trim_matches(['{', '}']);
        if name == word { name.replace(['-', '.'], "_") } else { format!("by_{name}") }
    });
    [method.to_ascii_lowercase()].into_iter().chain(words).collect::<Vec<_>>().join("_")
}
