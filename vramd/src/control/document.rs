//! What the API's document says of all paths alike: how the door answers before there is a path.

use control::RefusalKind;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{OpenApi, Ref, ResponseBuilder};

/// Answers of the door, and what they mean.
const OF_THE_DOOR: [(RefusalKind, &str); 4] = [
    (
        RefusalKind::NotAllowed,
        "The client is none of those who may control this broker",
    ),
    (RefusalKind::TooSlow, "The request did not arrive in time"),
    (RefusalKind::TooOften, "This user has asked too often"),
    (RefusalKind::TooManyConnections, "There are too many clients"),
];

/// Gives each operation the answers of the door that it does not name itself.
pub(super) fn add_answers_of_the_door(document: &mut OpenApi) {
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        for (kind, text) in OF_THE_DOOR {
            let schema = Ref::from_schema_name("Refusal");
            let content = ContentBuilder::new().schema(Some(schema)).build();
            let response = ResponseBuilder::new()
                .description(text)
                .content("application/json", content)
                .build();
            let responses = &mut operation.responses.responses;
            responses
                .entry(kind.status().to_string())
                .or_insert_with(|| response.into());
        }
    }
}

/// What can be done at a path.
fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem {
        get,
        put,
        post,
        delete,
        patch,
        ..
    } = path;
    [get, put, post, delete, patch].into_iter().flatten()
}
