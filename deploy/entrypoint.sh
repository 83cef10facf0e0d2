#!/bin/sh
# What is mounted is served, one bundle or a directory of them; an empty mount is a mistake and must not pass for the
# embedded model.
if [ -e /bundle ]; then
    export ATTENDANT_BUNDLE="${ATTENDANT_BUNDLE:-/bundle}"
fi
if [ -e /models ]; then
    export ATTENDANT_MODELS="${ATTENDANT_MODELS:-/models}"
fi
exec attendant "$@"
