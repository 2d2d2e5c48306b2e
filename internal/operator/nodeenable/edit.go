package nodeenable

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// line is one place in a file: its old text and its new text. Both end at the end of a line, and "" means that there
// was no text.
type line struct {
	Was string `json:"was"`
	Now string `json:"now"`
}

// edit sets the endpoints in a kubelet's configuration file and does not change anything else.
func edit(h doctor.Host, file, endpoint string) (change, error) {
	content, err := h.ReadFile(file)
	if err != nil {
		return change{}, fmt.Errorf("read the kubelet's configuration: %w", err)
	}
	c := change{path: file}
	text := string(content)
	want := map[string]any{}
	if err := yaml.Unmarshal(content, &want); err != nil {
		return change{}, fmt.Errorf("read the kubelet's configuration %s: %w", file, err)
	}
	for _, key := range []string{"containerRuntimeEndpoint", "imageServiceEndpoint"} {
		if _, ok := want[key]; !ok && key == "imageServiceEndpoint" {
			continue // the text is then the same
		}
		want[key] = endpoint
		l := line{Now: key + ": " + endpoint + "\n"}
		at := regexp.MustCompile(`(?m)^` + key + `:.*\n?`).FindStringIndex(text)
		switch {
		case at != nil:
			l.Was = text[at[0]:at[1]]
			text = text[:at[0]] + l.Now + text[at[1]:]
		case text != "" && !strings.HasSuffix(text, "\n"):
			l.Now = "\n" + l.Now
			text += l.Now
		default:
			text += l.Now
		}
		c.lines = append(c.lines, l)
	}
	// The result shows a file in another form (JSON, several documents, a value over several lines).
	var got map[string]any
	if err := yaml.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
		return change{}, program.Hintf(fmt.Sprintf("set containerRuntimeEndpoint: %s there by hand, and imageServiceEndpoint if it is set, then restart the kubelet", endpoint),
			"%s is not written in a way in which two lines of it can be replaced", file)
	}
	c.content = []byte(text)
	return c, nil
}

// undo returns the content of a file before lines were inserted. It restores a file that was changed since then only if
// each inserted line occurs once; otherwise ok is false.
func undo(content []byte, lines []line) (before []byte, ok bool) {
	text := string(content)
	for _, l := range slices.Backward(lines) {
		if at := places(text, l.Now); len(at) == 1 {
			text = text[:at[0][0]] + l.Was + text[at[0][1]:]
			continue
		}
		if !takenBack(text, l) {
			return nil, false
		}
	}
	return []byte(text), true
}

// takenBack reports whether the replaced line has already been restored.
func takenBack(text string, l line) bool {
	if l.Was != "" {
		return len(places(text, l.Was)) == 1
	}
	key, _, _ := strings.Cut(strings.TrimSpace(l.Now), ":")
	return len(places(text, key+":")) == 0
}

// places returns where lines are in a text, from the beginning of a line.
func places(text, lines string) [][]int {
	begin := "(?m)^"
	if strings.HasPrefix(lines, "\n") {
		begin = ""
	}
	return regexp.MustCompile(begin+regexp.QuoteMeta(lines)).FindAllStringIndex(text, -1)
}
