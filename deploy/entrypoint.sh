#!/bin/sh
# A bundle that is mounted is served; an empty mount is a mistake and must not pass for the embedded model.
if [ -e /bundle ]; then
    export ATTENDANT_BUNDLE="${ATTENDANT_BUNDLE:-/bundle}"
fi
exec attendant "$@"
