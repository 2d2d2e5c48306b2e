package nodeenable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// A Plan is an ordered list of steps. Without steps, no action is needed.
type Plan struct {
	Enable bool `json:"enable"` // whether the plan enables or disables
	// Found are the facts that the plan depends on, a sentence each.
	Found []string `json:"found"`
	Steps []Step   `json:"steps"`

	inspection inspection
	own        int // the first steps, which set pullgated's pod source
}

// Action is the action of a step.
type Action string

// The actions of steps.
const (
	Note   Action = "note"   // write the journal
	Write  Action = "write"  // write a file
	Remove Action = "remove" // remove a file
	Run    Action = "run"    // run a command
	Watch  Action = "watch"  // wait until the kubelet is healthy
)

// A Step is one action of a plan.
type Step struct {
	Action  Action   `json:"action"`
	Text    string   `json:"text"`              // the step, in one line
	Path    string   `json:"path,omitempty"`    // the file that is written or removed
	Diff    []string `json:"diff,omitempty"`    // contains the changed lines, each after "+ " or "- "
	Command []string `json:"command,omitempty"` // the command to run

	content, before []byte
	mode            fs.FileMode
}

// Enable plans to point the kubelet at pullgated. It refuses a node that would not be healthy afterwards, or whose
// kubelet could still bypass pullgated; the error then is a [program.HintError].
func (s Enabler) Enable(ctx context.Context) (Plan, error) {
	l, err := s.inspect(ctx)
	if err == nil {
		err = l.unmodified()
	}
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Enable: true, Steps: []Step{}, inspection: l}
	if s.enabled(l) && l.journal == nil && len(l.files) == 0 {
		return s.already(ctx, p, "", " pullgatectl did not configure it."), nil
	}
	c, err := s.target(ctx, l)
	if err != nil {
		return Plan{}, err
	}
	before, err := readIfThere(s.Host, c.path)
	if err != nil {
		return Plan{}, err
	}
	if bytes.Equal(before, c.content) && s.enabled(l) && (l.journal == nil || l.journal.Phase == Enabled) {
		return s.already(ctx, p, " by "+c.path, ""), nil
	}
	if err := s.ready(ctx, l); err != nil {
		return Plan{}, err
	}
	p = s.addPodSource(ctx, p, found(l.base), fmt.Sprintf("pullgated answers on %s, forwards to %s, and %s.",
		s.Daemon.Listen, s.Daemon.RuntimeEndpoint, s.Daemon.Enforces))
	p.Steps = append(p.Steps, s.enableSteps(l, c, before)...)
	return p, nil
}

// addPodSource adds to a plan what was found, the steps that set the pod source, and what needs proof.
func (s Enabler) addPodSource(ctx context.Context, p Plan, found ...string) Plan {
	steps, without := s.podSource(ctx, p.inspection)
	p.Found, p.own, p.Steps = found, len(steps), append(p.Steps, steps...)
	if without != "" {
		p.Found = append(p.Found, without)
	}
	if n := s.Daemon.Bypassed; n > 0 {
		p.Found = append(p.Found, fmt.Sprintf("%d image(s) need proof, because a pull may have brought them without "+
			"pullgated: pullgatectl preloaded accept --all-untracked --dry-run lists them.", n))
	}
	return p
}

// already is the plan for a node that is enabled. It may lack the pod source, if an older version has enabled it.
func (s Enabler) already(ctx context.Context, p Plan, by, more string) Plan {
	p = s.addPodSource(ctx, p, found(p.inspection.node), "")
	todo := ""
	if len(p.Steps) == 0 {
		todo = ", nothing to do"
	}
	p.Found[1] = "Already enabled" + by + todo + "." + more
	return p
}

func (s Enabler) enabled(l inspection) bool {
	e := s.Daemon.Listen
	return l.node.Configured.Through(e) && l.node.Dials().Through(e)
}

func (s Enabler) target(ctx context.Context, l inspection) (change, error) {
	endpoint := s.Daemon.Listen
	c, err := planChange(l.host, l.base, endpoint)
	if err != nil {
		return change{}, err
	}
	if c.lines == nil {
		owner, err := ownerOf(l.host, c.path)
		if err != nil {
			return change{}, err
		}
		if owner == ofOthers {
			return change{}, program.Hintf("move it away if it is not needed",
				"%s already exists, and pullgatectl did not write it", c.path)
		}
	}
	n, err := l.host.With(map[string][]byte{c.path: c.content}).Discover(ctx, l.base.Unit.Name)
	if err != nil {
		return change{}, fmt.Errorf("check the planned configuration: %w", err)
	}
	for _, v := range []struct {
		name string
		doctor.Setting
	}{{"container runtime endpoint", n.Configured.Runtime}, {"image service endpoint", n.Configured.Image}} {
		if !doctor.Same(v.Value, endpoint) {
			advice := fmt.Sprintf("remove the %s from %s, which has precedence over %s, then try again", v.name, v.From, c.path)
			if !path.IsAbs(v.From) {
				advice = "a file that is read after " + c.path +
					` overrides it; look for one with ExecStart=, or with kubelet-arg and no "+"`
			}
			return change{}, program.Hintf(advice, "the kubelet would still dial %s for its %s, set by %s", v.Value, v.name,
				v.From)
		}
	}
	return c, nil
}

func (s Enabler) enableSteps(l inspection, c change, before []byte) []Step {
	j := journal{
		Version: journalVersion, Phase: Applying, Unit: l.base.Unit.Name, Endpoint: s.Daemon.Listen,
		Runtime: l.base.Configured.Runtime.Value, Image: l.base.Configured.Image.Value,
		File: noted{Path: c.path, Lines: c.lines},
	}
	if l.journal != nil && l.journal.File.Path == c.path {
		j.File.Folders = l.journal.File.Folders
	}
	for dir := path.Dir(c.path); !exists(s.Host, dir); dir = path.Dir(dir) {
		if !slices.Contains(j.File.Folders, dir) {
			j.File.Folders = append([]string{dir}, j.File.Folders...)
		}
	}
	var steps []Step
	reload := isUnitFile(c.path)
	for _, f := range l.files { // from an earlier method, as long as the journal has it
		if f.path != c.path {
			steps = append(steps, s.back(f))
			reload = reload || isUnitFile(f.path)
		}
	}
	steps = append(steps, noteStep("note in "+Journal+" what changes, so that it can be reverted", j))
	if !bytes.Equal(before, c.content) {
		steps = append(steps, Step{
			Action: Write, Text: "write " + c.path, Path: c.path, Diff: diff(before, c.content), content: c.content, mode: 0o644,
		})
	}
	steps = append(steps, restartSteps(l.base.Unit.Name, reload)...)
	steps = append(steps, Step{Action: Watch, Text: fmt.Sprintf("watch it for up to %s: the unit stays up, the kubelet "+
		"is healthy, its calls arrive at pullgated; else revert all changes", s.Wait)})
	j.Phase = Enabled
	return append(steps, noteStep("note in "+Journal+" that it is done", j))
}

// Disable plans to revert what Enable did. It needs neither pullgated nor its configuration.
func (s Enabler) Disable(ctx context.Context) (Plan, error) {
	l, why := s.inspect(ctx)
	if why != nil && !l.unknown {
		return Plan{}, why
	}
	if err := l.unmodified(); err != nil {
		return Plan{}, err
	}
	p := Plan{Steps: []Step{}, inspection: l}
	listen := s.listen(l)
	if l.unknown {
		p.Found = []string{fmt.Sprintf("The kubelet's settings are unknown (%v); the changes in the journal are reverted.",
			why)}
	} else {
		p.Found = []string{found(l.node)}
		if base := l.base.Configured; doctor.Same(base.Runtime.Value, listen) || doctor.Same(base.Image.Value, listen) {
			return Plan{}, program.Hintf(fmt.Sprintf("remove pullgated's endpoint from %s by hand, then systemctl "+
				"daemon-reload and systemctl restart %s", base.Runtime.From, l.base.Unit.Name),
				"the kubelet is pointed at pullgated by %s, which pullgatectl did not write", base.Runtime.From)
		}
	}
	runs := l.node.Running != nil && l.node.Running.Through(listen)
	if l.journal == nil && len(l.files) == 0 && !runs {
		p.Found = append(p.Found, "Already disabled, nothing to do.")
		return p, nil
	}
	reload := l.journal != nil && isUnitFile(l.journal.File.Path)
	for _, f := range l.files {
		p.Steps = append(p.Steps, s.back(f))
		reload = reload || isUnitFile(f.path)
	}
	restart := restartSteps(l.node.Unit.Name, reload)
	if s.Boot {
		p.Steps = append(p.Steps, slices.DeleteFunc(restart, Step.isRestart)...)
	} else {
		p.Steps = append(append(p.Steps, restart...), Step{Action: Watch, Text: fmt.Sprintf("watch it for up to %s: the "+
			"unit stays up and the kubelet is healthy", s.Wait)})
	}
	if l.journal != nil {
		p.Steps = append(p.Steps, Step{Action: Remove, Text: "remove " + Journal, Path: Journal})
	}
	return p, nil
}

func (s Enabler) back(f kept) Step {
	now, _ := s.Host.ReadFile(f.path) // it was read a moment ago, and the diff is only shown
	if f.before == nil {
		return Step{Action: Remove, Text: "remove " + f.path, Path: f.path, Diff: diff(now, nil)}
	}
	return Step{
		Action: Write, Text: "write " + f.path + " as it was", Path: f.path, Diff: diff(now, f.before), content: f.before,
	}
}

func restartSteps(unit string, reload bool) (steps []Step) {
	commands := [][]string{{"systemctl", "restart", "--no-block", unit}}
	if reload {
		commands = append([][]string{{"systemctl", "daemon-reload"}}, commands...)
	}
	for _, c := range commands {
		steps = append(steps, Step{Action: Run, Text: "run " + strings.Join(c, " "), Command: c})
	}
	return steps
}

func isUnitFile(file string) bool { return strings.HasSuffix(path.Dir(file), ".service.d") }

func noteStep(text string, j journal) Step {
	return Step{Action: Note, Text: text, Path: Journal, content: j.marshal(), mode: 0o600}
}

func found(n doctor.Kubelet) string {
	d := n.Dials()
	text := fmt.Sprintf("%s (%s) is %s. The kubelet dials %s, set by %s", n.Unit.Name, n.Kind, n.Unit.Active,
		d.Runtime.Value, d.Runtime.From)
	if d.Image.Value != d.Runtime.Value {
		text += fmt.Sprintf(", and for images %s, set by %s", d.Image.Value, d.Image.From)
	}
	return text + "."
}

func diff(before, after []byte) (all []string) {
	was, now := lines(before), lines(after)
	for len(was) > 0 && len(now) > 0 && was[0] == now[0] {
		was, now = was[1:], now[1:]
	}
	for len(was) > 0 && len(now) > 0 && was[len(was)-1] == now[len(now)-1] {
		was, now = was[:len(was)-1], now[:len(now)-1]
	}
	for _, l := range was {
		all = append(all, strings.TrimRight("- "+l, " "))
	}
	for _, l := range now {
		all = append(all, strings.TrimRight("+ "+l, " "))
	}
	return all
}

func lines(content []byte) []string {
	if len(content) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
}

func readIfThere(h doctor.Host, file string) ([]byte, error) {
	content, err := h.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return content, err
}

// Lines returns the plan as text.
func (p Plan) Lines() []string {
	all := slices.Clone(p.Found)
	for i, s := range p.Steps {
		if i == 0 {
			all = append(all, "")
		}
		all = append(all, fmt.Sprintf("%d. %s", i+1, s.Text))
		for _, l := range s.Diff {
			all = append(all, "     "+l)
		}
	}
	return all
}

// A Status describes what a kubelet dials and why.
type Status struct {
	Unit    string `json:"unit"`
	Kind    string `json:"kind"`
	State   string `json:"state"`
	Enabled bool   `json:"enabled"` // whether the kubelet dials pullgated for both services, now and after its next start
	// Runtime and Image are what it dials for each service, and where that is configured.
	Runtime doctor.Setting `json:"runtime"`
	Image   doctor.Setting `json:"image"`
	Files   []string       `json:"files"`             // the unchanged files that pullgatectl wrote
	Journal string         `json:"journal,omitempty"` // the phase of the journal; "" if there is none
	Without doctor.Setting `json:"without"`           // what the kubelet would dial without the changes of pullgatectl
	Wrong   []string       `json:"wrong"`             // the problems that need attention, a sentence each
}

// Status inspects the node and changes nothing.
func (s Enabler) Status(ctx context.Context) (Status, error) {
	l, err := s.inspect(ctx)
	if err != nil {
		return Status{}, err
	}
	d := l.node.Dials()
	st := Status{
		Unit: l.node.Unit.Name, Kind: string(l.node.Kind), State: l.node.Unit.Active, Enabled: s.enabled(l),
		Runtime: d.Runtime, Image: d.Image, Without: l.base.Configured.Runtime, Files: []string{}, Wrong: s.wrong(ctx, l),
	}
	for _, f := range l.files {
		st.Files = append(st.Files, f.path)
	}
	if l.journal != nil {
		st.Journal = l.journal.Phase
	}
	return st, nil
}

func (s Enabler) wrong(ctx context.Context, l inspection) []string {
	all := []string{}
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	d, c, e := l.node.Dials(), l.node.Configured, s.Daemon.Listen
	if runtime, image := doctor.Same(d.Runtime.Value, e), doctor.Same(d.Image.Value, e); runtime != image {
		add("Only one of the two CRI services goes through pullgated: the kubelet dials %s for containers and %s for "+
			"images (set by %s).", d.Runtime.Value, d.Image.Value, d.Image.From)
	}
	if d.Through(e) != c.Through(e) {
		add("The running kubelet dials %s, and after a restart it will dial %s (set by %s).", d.Runtime.Value,
			c.Runtime.Value, c.Runtime.From)
	}
	for _, f := range l.modifiedByOthers {
		add("%s was changed since pullgatectl node enable wrote it; enable and disable leave it as it is.", f)
	}
	if l.journal != nil && l.journal.Phase == Applying {
		add("pullgatectl node enable was interrupted; run it again, or pullgatectl node disable.")
	}
	if j := l.journal; j != nil && j.Phase == Enabled && len(l.files)+len(l.modifiedByOthers) == 0 {
		add("What pullgatectl node enable wrote to %s is gone; run it again, or pullgatectl node disable.", j.File.Path)
	}
	if stale := s.stale(l); stale != "" {
		add("%s; run pullgatectl node enable to write it again.", stale)
	}
	if s.enabled(l) {
		if err := s.answers(ctx, l); err != nil {
			add("%s: %v.", l.node.Unit.Name+" needs pullgated", err)
		}
	}
	return all
}

// Stale returns a sentence if the file that Enable wrote on a host, for a pullgated that listens at an endpoint,
// contains settings of the kubelet that have changed since, such as the command line of its unit; "" otherwise.
func Stale(ctx context.Context, host doctor.Host, listen string) (string, error) {
	s := Enabler{Host: host, Daemon: Daemon{Config: config.Config{Listen: listen}}}
	l, err := s.inspect(ctx)
	if err != nil {
		return "", err
	}
	return s.stale(l), nil
}

func (s Enabler) stale(l inspection) string {
	if len(l.files) == 0 || len(l.modifiedByOthers) > 0 {
		return ""
	}
	c, err := planChange(l.host, l.base, s.listen(l))
	now, readErr := readIfThere(s.Host, c.path)
	if err != nil || readErr != nil || string(now) == string(c.content) {
		return ""
	}
	return fmt.Sprintf("The kubelet's settings have changed since pullgatectl node enable wrote %s, which keeps the old "+
		"ones in use", c.path)
}

// Lines returns the status as text; problems are after "!".
func (st Status) Lines() []string {
	all := []string{"disabled: the kubelet dials the runtime itself"}
	if st.Enabled {
		all[0] = "enabled: the kubelet dials pullgated"
	}
	row := func(name, format string, args ...any) {
		all = append(all, fmt.Sprintf("  %-12s ", name)+fmt.Sprintf(format, args...))
	}
	row("unit", "%s (%s), %s", st.Unit, st.Kind, st.State)
	row("dials", "%s, set by %s", st.Runtime.Value, st.Runtime.From)
	if st.Image != st.Runtime {
		row("for images", "%s, set by %s", st.Image.Value, st.Image.From)
	}
	if st.Without.Value != st.Runtime.Value {
		row("disabled", "it would dial %s, set by %s", st.Without.Value, st.Without.From)
	}
	for _, f := range st.Files {
		row("written", "%s", f)
	}
	if st.Journal != "" {
		row("journal", "%s, in %s", st.Journal, Journal)
	}
	for _, w := range st.Wrong {
		all = append(all, "  ! "+w)
	}
	return all
}
