#!/bin/sh
# Spark starts every Java with an additional module. This Java was built without the module, and would not start with it. So
# this script removes the module from Java's own options. Arguments after the class or jar belong to the program, and stay.
java=@JAVA@
module=@MODULE@

without() { # sets names to the given list without the module
    names=,$1,
    while :; do
        case $names in
        *",$module,"*) names=${names%%",$module,"*},${names#*",$module,"} ;;
        *) break ;;
        esac
    done
    names=${names#,}
    names=${names%,}
}

left=$#
options=yes
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    if [ "$options" = yes ]; then
        case $argument in
        --add-modules)
            if [ "$left" -gt 0 ]; then
                without "$1"
                shift
                left=$((left - 1))
                [ -n "$names" ] && set -- "$@" --add-modules "$names"
                continue
            fi
            ;;
        --add-modules=*)
            without "${argument#--add-modules=}"
            [ -n "$names" ] && set -- "$@" "--add-modules=$names"
            continue
            ;;
        -cp | -classpath | --class-path | -p | --module-path | --upgrade-module-path | --limit-modules | \
            --add-exports | --add-opens | --add-reads | --patch-module | --enable-native-access | --source)
            if [ "$left" -gt 0 ]; then
                set -- "$@" "$argument" "$1"
                shift
                left=$((left - 1))
                continue
            fi
            ;;
        -jar | -m | --module) options=no ;;
        -* | @*) ;;
        *) options=no ;;
        esac
    fi
    set -- "$@" "$argument"
done
exec "$java" "$@"
