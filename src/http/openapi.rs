//! The OpenAPI document of all routes, made from the same table as the router.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use utoipa::openapi::path::{OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ComponentsBuilder, Schema};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Content as MediaType, InfoBuilder, OpenApi, OpenApiBuilder, PathItem, PathsBuilder, RefOr, Required,
    ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use super::origin::BaseUrl;
use super::route::{Content, Route};
use super::routes::routes;
use super::wire::ProblemJson;
use super::{AppState, Auth};

/// Name of the way to authenticate within the document.
const TOKEN: &str = "token";

/// `GET /openapi.json`.
pub(super) async fn document(State(state): State<AppState>, BaseUrl(base): BaseUrl) -> Json<OpenApi> {
    let mut document = describe(routes(&state), state.auth);
    document.servers = Some(vec![utoipa::openapi::Server::new(base)]);
    Json(document)
}

fn describe(routes: Vec<Route>, auth: Auth) -> OpenApi {
    let mut schemas: BTreeMap<String, RefOr<Schema>> = BTreeMap::new();
    schemas.insert(ProblemJson::name().into_owned(), ProblemJson::schema());
    let mut paths = PathsBuilder::new();
    for route in routes {
        for content in route.answers.iter().filter_map(|answer| answer.content.as_ref()).chain(&route.body) {
            schemas.extend(content.components.iter().cloned());
        }
        for (index, path) in route.paths.iter().enumerate() {
            let operation = operation(&route, path, index > 0, auth);
            paths = paths.path(*path, PathItem::new(route.method.clone(), operation));
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

fn operation(route: &Route, path: &str, is_alias: bool, auth: Auth) -> OperationBuilder {
    let mut operation = OperationBuilder::new().summary(Some(route.summary));
    if is_alias {
        operation = operation.description(Some(format!("The same as `{}`.", route.paths.first().unwrap_or(&path))));
    }
    for name in path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name) {
        let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path).required(Required::True);
        operation = operation.parameter(parameter.description(described(name)).schema(Some(String::schema())));
    }
    for parameter in &route.parameters {
        let place = if parameter.is_header { ParameterIn::Header } else { ParameterIn::Query };
        let required = if parameter.is_required { Required::True } else { Required::False };
        let built = ParameterBuilder::new().name(parameter.name).parameter_in(place).required(required);
        operation = operation.parameter(built.description(Some(parameter.description)).schema(Some(String::schema())));
    }
    if let Some(body) = &route.body {
        let body = RequestBodyBuilder::new().content(body.media_type, media_type(body)).required(Some(Required::True));
        operation = operation.request_body(Some(body.build()));
    }
    for answer in &route.answers {
        let mut response = ResponseBuilder::new().description(answer.description);
        if let Some(content) = &answer.content {
            response = response.content(content.media_type, media_type(content));
        }
        operation = operation.response(answer.status.to_string(), response);
    }
    let problem = Content::json::<ProblemJson>();
    let problem = ResponseBuilder::new()
        .description("a failure; docs/errors.md lists the codes")
        .content("application/problem+json", media_type(&problem));
    operation = operation.response("default", problem);
    match (route.needs, auth) {
        (Some(scope), Auth::Tokens) => operation.security(SecurityRequirement::new(TOKEN, [scope.to_string()])),
        _ => operation.securities(Some([])),
    }
}

fn media_type(content: &Content) -> MediaType {
    MediaType::new(Some(content.schema.clone()))
}

fn described(name: &str) -> Option<&'static str> {
    match name {
        "hash" | "xorb" => Some("64 hex digits, in the protocol's text form"),
        "id" => Some("the id of a grant"),
        "file" => Some("64 hex digits: the hash of a file"),
        "digest" => Some("64 hex digits, as sha256sum prints them"),
        "prefix" => Some("any; clients send `default` or `default-merkledb`"),
        _ => None,
    }
}
