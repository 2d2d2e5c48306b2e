package podfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	kjson "sigs.k8s.io/json"
)

// maxTemplates bounds the pod templates of one object.
const maxTemplates = 100

// ErrTemplate means that the pod templates of an object cannot be found or decoded.
var ErrTemplate = errors.New("podfile: invalid pod template")

// A Template is a pod template in JSON that is not decoded yet.
type Template struct {
	At   string // its path in the object, with indices
	Data []byte
}

// Templates returns the pod templates of an object in JSON, which are at the paths. A path is names of fields; the
// elements of lists are all included. The error is ErrTemplate.
func Templates(object []byte, paths [][]string) ([]Template, error) {
	var all []Template
	for _, path := range paths {
		if err := walk(object, path, "", &all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// walk adds what is at a path below a value.
func walk(value []byte, path []string, at string, all *[]Template) error {
	value = bytes.TrimSpace(value)
	if len(value) == 0 || string(value) == "null" {
		return nil
	}
	if value[0] != '[' {
		return walkObject(value, path, at, all)
	}
	var list []json.RawMessage
	if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &list); err != nil {
		return NotDecoded(at, "a list")
	}
	for i, element := range list {
		element = bytes.TrimSpace(element)
		if string(element) == "null" {
			continue
		}
		if err := walkObject(element, path, fmt.Sprintf("%s[%d]", at, i), all); err != nil {
			return err
		}
	}
	return nil
}

// walkObject is walk for a value that is not a list. So the depth is limited by the length of the path.
func walkObject(value []byte, path []string, at string, all *[]Template) error {
	if value[0] != '{' {
		return NotDecoded(at, "an object")
	}
	if len(path) == 0 {
		if len(*all) == maxTemplates {
			return fmt.Errorf("%w: there are more than %d", ErrTemplate, maxTemplates)
		}
		*all = append(*all, Template{at, value})
		return nil
	}
	var fields map[string]json.RawMessage
	if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &fields); err != nil {
		return NotDecoded(at, "an object")
	}
	return walk(fields[path[0]], path[1:], strings.TrimPrefix(at+"."+path[0], "."), all)
}

// NotDecoded returns the ErrTemplate for a value of an object, without the cause: it can contain values.
func NotDecoded(at, want string) error {
	at = cmp.Or(at, "the object")
	return fmt.Errorf("%w: %s is not %s", ErrTemplate, at, want)
}
