package strictyaml

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// WithLines adds the line of its field, or of the innermost field around it, to each error that begins with the path of
// a field and a colon, as in "listen: Invalid value … (line 12)".
func WithLines(data []byte, errs []error) []error {
	var document yaml.Node
	if len(errs) == 0 || yaml.Unmarshal(data, &document) != nil || len(document.Content) == 0 {
		return errs
	}
	located := make([]error, len(errs))
	for i, err := range errs {
		text := err.Error()
		if !strings.HasPrefix(text, "[") {
			text = "." + text
		}
		located[i] = err
		if p := locate(document.Content[0], position{rest: text}); p.line > 0 {
			located[i] = fmt.Errorf("%w (line %d)", err, p.line)
		}
	}
	return located
}

type position struct {
	line int
	rest string // of the text with the path, after the node
}

// locate returns the innermost node on a path. A step is .name or [name] in a mapping, and [index] in a list.
func locate(n *yaml.Node, at position) position {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	best := at
	try := func(step string, line int, value *yaml.Node) {
		rest, ok := strings.CutPrefix(at.rest, step)
		if !ok || rest == "" || !strings.Contains(".[:", rest[:1]) {
			return
		}
		if p := locate(value, position{line, rest}); len(p.rest) < len(best.rest) { // a name may contain a dot
			best = p
		}
	}
	switch n.Kind { //nolint:exhaustive // the others have no fields
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			try("."+key.Value, key.Line, value)
			try("["+key.Value+"]", key.Line, value)
		}
	case yaml.SequenceNode:
		for i, value := range n.Content {
			try("["+strconv.Itoa(i)+"]", value.Line, value)
		}
	}
	return best
}
