"""`tetrad chat`: chats with the model of a running server, or sends one message with --quick."""

from tetrad.cli.http_client import HttpClient
from tetrad.cli.options import new_parser
from tetrad.cli.sampling_options import add_sampling_options, sampling_fields
from tetrad.cli.talk.audio_file import AudioFile
from tetrad.cli.talk.commands import run_command
from tetrad.cli.talk.conversation import MediaFile, TalkConversation
from tetrad.cli.talk.image_file import ImageFile
from tetrad.cli.talk.terminal import Terminal
from tetrad.cli.talk.video_file import VideoFile
from tetrad.services.command_line import CommandLineParser
from tetrad.services.errors import InvalidRequest
from tetrad.services.hub.model_files import CacheSettings

_HISTORY = "chat_history"


def run(arguments: list[str]) -> int:
    """Chat until the input ends."""
    options = make_parser().parse_args(arguments)
    attached: list[MediaFile] = [*map(ImageFile.read, options.image), *map(AudioFile.read, options.audio)]
    attached += map(VideoFile.read, options.video)
    with HttpClient(options.url, api_key=options.api_key, ca_file=options.ca_file) as client:
        fields = {"model": client.model_name(options.model), **sampling_fields(options)}
        conversation = TalkConversation(client, fields, options.system_prompt or "", attached=attached)
        terminal = Terminal(CacheSettings().directory() / _HISTORY)
        if options.quick is not None:
            conversation.say(options.quick, terminal.show, terminal.show_reasoning)
            terminal.end_answer()
            return 0
        terminal.note(f"{fields['model']} at {client.url}. /help lists commands, Ctrl-D ends.")
        with terminal.opened():
            _talk(terminal, conversation)
    return 0


def make_parser() -> CommandLineParser:
    """Return the command's parser."""
    parser = new_parser("chat", "Chat with the model of a running server. /help lists commands, Ctrl-D ends the conversation.")
    add_sampling_options(parser)
    parser.add_argument("--system-prompt", default=None, metavar="TEXT", help="System message of the conversation.")
    text = "Image of the first message; several flags attach several. /image attaches one to a later message."
    parser.add_argument("-i", "--image", action="append", default=[], metavar="FILE", help=text)
    text = "Audio of the first message; several flags attach several. /audio attaches one to a later message."
    parser.add_argument("--audio", action="append", default=[], metavar="FILE", help=text)
    text = "Video of the first message; several flags attach several. /video attaches one to a later message."
    parser.add_argument("--video", action="append", default=[], metavar="FILE", help=text)
    parser.add_argument("-q", "--quick", metavar="MESSAGE", default=None, help="Send one message, print the answer and exit.")
    return parser


def _talk(terminal: Terminal, conversation: TalkConversation) -> None:
    while (text := terminal.read_message()) is not None:
        if text.startswith("/"):
            done = run_command(text, conversation)
            if done.shown:
                print(done.shown)
            if done.ends:
                return
            text = done.again
        if text:
            _say(terminal, conversation, text)


def _say(terminal: Terminal, conversation: TalkConversation, text: str) -> None:
    try:
        speed = conversation.say(text, terminal.show, terminal.show_reasoning)
        terminal.end_answer()
        terminal.note(str(speed))
    except KeyboardInterrupt:
        if not terminal.is_interactive:
            raise
        terminal.end_answer()
        terminal.note("The answer was ended.")
    except InvalidRequest as error:
        # An invalid field of /set or a too long conversation: the user can change it.
        if not terminal.is_interactive:
            raise
        print(error.message)
