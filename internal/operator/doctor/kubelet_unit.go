package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing/iotest"

	"github.com/coreos/go-systemd/v22/unit"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// A Unit is a service of systemd.
type Unit struct {
	Name        string   // ends with .service
	Loaded      bool     // whether the unit exists
	Active, Sub string   // its state in the words of systemd: active and running
	MainPID     int      // its process; 0 is none
	Restarts    int      // how often systemd has restarted it since an operator started it
	Invocation  string   // the invocation ID of systemd, which is new after each start
	Files       []string // the unit file and its drop-ins; later ones take precedence
}

const unitProperties = "Id,LoadState,ActiveState,SubState,MainPID,NRestarts,InvocationID,FragmentPath,DropInPaths"

// Units returns the units of these names, one for each, whether there is one or not.
func (h Host) Units(ctx context.Context, names ...string) ([]Unit, error) {
	out, err := h.Run(ctx, "systemctl", append([]string{"show", "--property=" + unitProperties, "--"}, names...)...)
	if err != nil {
		return nil, program.Hintf("this requires a node on which systemd runs the kubelet; otherwise set the kubelet's "+
			"endpoint by hand: see https://github.com/pullgate/pullgate/blob/main/docs/install.md",
			"ask systemd for %s: %w", strings.Join(names, ", "), err)
	}
	var units []Unit
	for block := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n\n") {
		u, err := h.unit(block)
		if err != nil {
			return nil, err
		}
		units = append(units, u)
	}
	if len(units) != len(names) {
		return nil, fmt.Errorf("get %s from systemd: the answer has %d units", strings.Join(names, ", "), len(units))
	}
	return units, nil
}

func (h Host) unit(block string) (Unit, error) {
	value := map[string]string{}
	for line := range strings.Lines(block) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		value[k] = v
	}
	u := Unit{
		Name:       value["Id"],
		Loaded:     value["LoadState"] == "loaded",
		Active:     value["ActiveState"],
		Sub:        value["SubState"],
		Invocation: value["InvocationID"],
	}
	if u.Name == "" {
		return Unit{}, fmt.Errorf("systemd shows a unit without a name: %q", block)
	}
	for name, to := range map[string]*int{"MainPID": &u.MainPID, "NRestarts": &u.Restarts} {
		n, err := strconv.Atoi(value[name])
		if err != nil && value[name] != "" {
			return Unit{}, fmt.Errorf("systemd shows %s: %s=%q is not a number", u.Name, name, value[name])
		}
		*to = n
	}
	u.Files = h.unitFiles(u.Name, value["FragmentPath"], strings.Fields(value["DropInPaths"]))
	return u, nil
}

// unitFiles puts the unit file before its drop-ins, which are ordered by name, with those that h changes.
func (h Host) unitFiles(name, fragment string, dropIns []string) []string {
	dropIns = slices.DeleteFunc(dropIns, h.isChanged)
	for file, content := range h.changed {
		if content != nil && path.Base(path.Dir(file)) == name+".d" && path.Ext(file) == ".conf" {
			dropIns = append(dropIns, file)
		}
	}
	slices.SortFunc(dropIns, func(a, b string) int { return strings.Compare(path.Base(a), path.Base(b)) })
	if fragment == "" {
		return dropIns
	}
	return append([]string{fragment}, dropIns...)
}

type word struct{ text, from string }

type service struct {
	execStart, execStartFrom string // the effective ExecStart=, on one line, as in the file execStartFrom
	// words is the command line with its variables replaced, environment has their values.
	words       []word
	environment map[string]word
}

func (h Host) service(u Unit) (service, error) {
	s := service{environment: map[string]word{}}
	var files []word // EnvironmentFile=, which takes precedence over Environment=
	for _, file := range u.Files {
		content, err := h.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) && path.Ext(file) == ".conf" {
			continue // a drop-in that was removed, before a daemon-reload
		}
		if err != nil {
			return service{}, fmt.Errorf("read a file of %s: %w", u.Name, err)
		}
		// The parser refuses a line of more than 2048 bytes that is in its buffer, which systemd accepts.
		all, err := unit.DeserializeOptions(iotest.OneByteReader(strings.NewReader(logical(content))))
		if err != nil {
			return service{}, fmt.Errorf("read %s: %w", file, err)
		}
		for _, o := range all {
			switch key, value := o.Name, o.Value; {
			case o.Section != "Service":
			case key == "ExecStart":
				s.execStart, s.execStartFrom = value, file
			case key == "Environment" && value == "":
				clear(s.environment)
			case key == "Environment":
				for _, w := range split(value) {
					k, v, _ := strings.Cut(w, "=")
					s.environment[k] = word{v, file}
				}
			case key == "EnvironmentFile" && value == "":
				files = nil
			case key == "EnvironmentFile":
				files = append(files, word{value, file})
			}
		}
	}
	for _, f := range files {
		if err := s.readEnvironment(h, specifiers(f.text, u.Name)); err != nil {
			return service{}, fmt.Errorf("environment file of %s: %w", f.from, err)
		}
	}
	for i, w := range split(s.execStart) {
		if i == 0 {
			w = strings.TrimLeft(w, "@-:+!|")
		}
		s.words = append(s.words, s.expand(specifiers(w, u.Name))...)
	}
	if len(s.words) == 0 {
		return service{}, fmt.Errorf("%s has no ExecStart=", u.Name)
	}
	return s, nil
}

func (s service) program() string { return path.Base(s.words[0].text) }

func (s service) readEnvironment(h Host, file string) error {
	file, optional := strings.CutPrefix(file, "-")
	content, err := h.ReadFile(file)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(logical(content)) {
		if k, v, ok := strings.Cut(line, "="); ok {
			s.environment[strings.TrimSpace(k)] = word{strings.Join(unquotedWords(strings.TrimSpace(v), false), ""), file}
		}
	}
	return nil
}

var (
	wholeVariable = regexp.MustCompile(`^\$[A-Za-z0-9_]+$`)
	variable      = regexp.MustCompile(`\$\{[^}]*\}?`)
)

// expand puts variables into a word: $NAME as a whole word becomes as many words as its value has, ${NAME} is
// replaced within the word.
func (s service) expand(w string) (all []word) {
	if wholeVariable.MatchString(w) {
		value := s.environment[w[1:]]
		for part := range strings.FieldsSeq(value.text) {
			all = append(all, word{part, value.from})
		}
		return all
	}
	from := s.execStartFrom
	text := variable.ReplaceAllStringFunc(w, func(name string) string {
		v, ok := s.environment[strings.TrimSuffix(name[len("${"):], "}")]
		if ok {
			from = v.from
		}
		return v.text
	})
	return []word{{strings.ReplaceAll(text, "$$", "$"), from}}
}

func specifiers(s, unit string) string {
	name := strings.TrimSuffix(unit, filepath.Ext(unit))
	return strings.NewReplacer("%%", "%", "%n", unit, "%N", name, "%p", name).Replace(s)
}

// logical returns the content of a file of systemd without comments, which may stand within a value, and with each
// value on one line. The parser of units does not do the first.
func logical(content []byte) string {
	text := regexp.MustCompile(`(?m)^[ \t]*[#;].*\n?`).ReplaceAllString(string(content), "")
	return regexp.MustCompile(`[ \t]*\\\n[ \t]*`).ReplaceAllString(text, " ")
}

func split(s string) []string { return unquotedWords(s, true) }

func unquotedWords(s string, atBlanks bool) (all []string) {
	var b strings.Builder
	quote, in := byte(0), false
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && quote != '\'' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
			in = true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, in = c, true
		case quote == 0 && atBlanks && (c == ' ' || c == '\t'):
			if in {
				all = append(all, b.String())
				b.Reset()
				in = false
			}
		default:
			b.WriteByte(c)
			in = true
		}
	}
	if in {
		all = append(all, b.String())
	}
	return all
}
