"""`POST /v1/chat/completions`: a completion of the last user message, for clients that know no other endpoint."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from attendant.service.http.context import Context
from attendant.service.http.endpoints.completion import answer_completion
from attendant.service.http.endpoints.openai import COMPLETION_ERRORS, OPENAI, STREAMED
from attendant.service.http.guard.policy import Access, policy
from attendant.service.http.route import DirectRoute
from attendant.service.http.streaming import stream_declaration
from attendant.service.openai.chat import CHAT_SHAPE, as_completion
from attendant.service.openai.chat_schemas import ChatRequest, ChatResponse
from attendant.service.openai.paths import CHAT

direct = APIRouter(route_class=DirectRoute)


@direct.post(CHAT, response_model=ChatResponse, responses={**COMPLETION_ERRORS, 200: stream_declaration(STREAMED)})
@policy(Access.API_KEY, label=CHAT, names_model=True, dialect=OPENAI)
async def create_chat_completion(request: ChatRequest, context: Context) -> Response:
    """Targets for the last user message, as OpenAI's chat completes it: the message is the source."""
    field = f"messages[{len(request.messages) - 1}].content"
    return await answer_completion(as_completion(request), context, CHAT_SHAPE, field)
