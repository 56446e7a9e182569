"""Writing and reading private files: each is written once and renamed into place.

Every file has one writer, or is written once. A reader never sees half a file: data goes to a
temporary name in the same directory and is then renamed, or linked if a second writer must fail.

calls     calls that are repeated if that helps, and the meaning of their errors
content   files that are written and read as a whole; JSON with a `version`
names     names and paths as people write them
together  calls of a slow filesystem at the same time

Network filesystems answer some calls with errors that say nothing about the file: ESTALE for a name
that another node is just replacing, ENOENT for a rename whose first answer got lost. The functions
here repeat the call if that helps. An error that they still raise means that the answer is unknown
now.
"""

from snakemake_kochi.files.calls import (
    NO_ROOM,
    PRIVATE_DIRECTORY,
    answered,
    is_removed,
    is_there,
    lacks_room,
    list_names,
    make_directory,
    may_pass,
    modified,
    move,
    note_use,
    remove_tree,
    show_new_files,
    sync,
    sync_directory,
    time_of_new_file,
    time_of_server,
    times_and_sizes,
)
from snakemake_kochi.files.content import (
    BLOCK,
    LARGE_BLOCK,
    LINK_REFUSED,
    OF_A_PERSON,
    blocks_of,
    copy_file,
    copy_stream,
    edit_atomically,
    has_room,
    last_lines,
    parse_json,
    read_file,
    read_json,
    to_json,
    write_atomically,
    write_exclusively,
    write_file,
    write_last,
    write_new,
)
from snakemake_kochi.files.names import (
    LONGEST_NAME,
    expand_path,
    expand_user,
    is_name,
    is_same_directory,
    name_of,
    random_word,
    safe_name,
)
