package dispatcher_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// publicKey is a key in PEM, as a JSON string.
const publicKey = `"-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEQi9UP3ILvnOagDE4weN1prW53Z0Q\n` +
	`6xx3c4Ewt6X8m1+NQJ6bSq3449obFwlwStXNrNnibR2QZv3NgF0L/DbemA==\n-----END PUBLIC KEY-----\n"`

// TestSchemaRefusesWhatCanNeverWork names for each value the place of the error.
func TestSchemaRefusesWhatCanNeverWork(t *testing.T) {
	t.Parallel()
	onEach(t, 0, refusesWhatCanNeverWork)
}

func refusesWhatCanNeverWork(x *test) {
	t := x.T
	try := func(change func(spec map[string]any)) error {
		o := parse(t, fmt.Sprintf(rollout, x.pool))
		spec, _ := o.Object["spec"].(map[string]any)
		change(spec)
		_, err := x.fleet.rollouts.Create(t.Context(), o, metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
		})
		return err
	}
	if err := try(func(map[string]any) {}); err != nil {
		t.Fatalf("the Rollout that is changed is refused: %v", err)
	}
	for _, c := range []struct{ field, value, place string }{
		{"version", `""`, "spec.version"},
		{"version", `"../v1"`, "spec.version"},
		{"version", `"a/b"`, "spec.version"},
		{"version", `null`, "spec.version"},
		{"version", `1`, "spec.version"},
		{"image", `"registry.example.com/pullgate"`, "spec.image"},
		{"image", `"a b:v1"`, "spec.image"},
		{"image", `"a@sha256:0"`, "spec.image"},
		{"image", `"a//b:v1"`, "spec.image"},
		{"image", `"registry.example.com/Team/pullgate:v1"`, "spec.image"},
		{"image", `"registry.example.com/a/:v1"`, "spec.image"},
		{"image", `"registry.example.com:port/a:v1"`, "spec.image"},
		{"image", `"a:` + strings.Repeat("v", 129) + `"`, "spec.image"},
		{"nodeSelector", `null`, "spec.nodeSelector"},
		{"nodeSelector", `{"matchLabels": {"a b": "c"}}`, "spec.nodeSelector.matchLabels"},
		{"nodeSelector", `{"matchLabels": {"a/b/c": "d"}}`, "spec.nodeSelector.matchLabels"},
		{"nodeSelector", `{"matchLabels": {"": "a"}}`, "spec.nodeSelector.matchLabels"},
		{"nodeSelector", `{"matchLabels": {"` + strings.Repeat("a", 64) + `": "b"}}`, "spec.nodeSelector.matchLabels"},
		{"nodeSelector", `{"matchExpressions": [{"key": "a b", "operator": "Exists"}]}`, "matchExpressions[0].key"},
		{"nodeSelector", `{"matchExpressions": [{"key": "", "operator": "Exists"}]}`, "matchExpressions[0].key"},
		{"nodeSelector", `{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b c"]}]}`, "values[0]"},
		{"nodeSelector", `{"pool": "a"}`, "spec.nodeSelector.pool"},
		{"nodeSelector", `{"matchLabels": {"a": "b c"}}`, "spec.nodeSelector.matchLabels"},
		{"nodeSelector", `{"matchExpressions": [{"key": "a", "operator": "In"}]}`, "spec.nodeSelector.matchExpressions[0]"},
		{"nodeSelector", `{"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}`, "Expressions[0]"},
		{"nodeSelector", `{"matchExpressions": [{"key": "a", "operator": "Is"}]}`, "matchExpressions[0].operator"},
		{"mode", `"enforce"`, "spec.mode"},
		{"mode", `null`, "spec.mode"},
		{"configuration", `""`, "configuration is required"},
		{"unsigned", `false`, "either publicKey or unsigned=true"},
		{"publicKey", publicKey, "either publicKey or unsigned=true"},
		{"publicKey", `"-----BEGIN EC PRIVATE KEY-----\nA"`, "spec.publicKey"},
		{"publicKey", `"-----BEGIN PUBLIC KEY-----\nA"`, "spec.publicKey"},
		{"publicKey", `"-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----"`, "spec.publicKey"},
		{"publicKey", `"-----BEGIN PUBLIC KEY-----\nthe key\n-----END PUBLIC KEY-----"`, "spec.publicKey"},
		{"publicKey", strings.Replace(publicKey, "\\n\"", `\nmore"`, 1), "spec.publicKey"},
		{"publicKey", strings.Replace(publicKey, "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE", // the same on P-384
			"MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE", 1), "an ECDSA key on P-256"},
		{"configuration", `"# in shadow mode\nnoPullImageSecretRecheck: true\n"`, "remove noPullImageSecretRecheck"},
		{"waves", `[]`, "spec.waves"},
		{"waves", `[0]`, "spec.waves[0]"},
		{"waves", `["0%"]`, "spec.waves[0]"},
		{"waves", `["101%"]`, "spec.waves[0]"},
		{"waves", `["10"]`, "spec.waves[0]"},
		{"waves", `[5001]`, "spec.waves[0]"},
		{"waves", `[1.5]`, "spec.waves[0]"},
		{"waves", `[1,1,1,1,1,1,1,1,1,1,1]`, "spec.waves"},
		{"soak", `"5"`, "spec.soak"},
		{"soak", `"-5m"`, "spec.soak"},
		{"soak", `"200h"`, "spec.soak"},
		{"soak", `"1d"`, "spec.soak"},
		{"failureBudget", `-1`, "spec.failureBudget"},
		{"failureBudget", `"all"`, "spec.failureBudget"},
		{"failureBudget", `"101%"`, "spec.failureBudget"},
		{"confirmWithin", `"29s"`, "spec.confirmWithin"},
		{"confirmWithin", `"61m"`, "spec.confirmWithin"},
		{"probation", `"0s"`, "spec.probation"},
		{"probation", `"2h"`, "spec.probation"},
		{"installFolder", `"/"`, "spec.installFolder"},
		{"installFolder", `"/opt"`, "spec.installFolder"},
		{"installFolder", `"opt/pullgate"`, "spec.installFolder"},
		{"installFolder", `"/opt/../etc"`, "spec.installFolder"},
		{"installFolder", `"/opt/pullgate/"`, "spec.installFolder"},
		{"paused", `"yes"`, "spec.paused"},
		{"failurebudget", `1`, "spec.failurebudget"},
	} {
		err := try(func(spec map[string]any) {
			var v any
			testkit.Must(t, json.Unmarshal([]byte(c.value), &v))
			if spec[c.field] = v; v == nil {
				delete(spec, c.field)
			}
		})
		if err == nil || !strings.Contains(err.Error(), c.place) {
			t.Errorf("%s: %s is answered with %v; want an error about %s", c.field, c.value, err, c.place)
		}
	}
	for text, key := range map[string]string{
		"as it is": publicKey, "with the ends of lines of Windows": strings.ReplaceAll(publicKey, `\n`, `\r\n`),
	} {
		if err := try(func(spec map[string]any) {
			delete(spec, "unsigned")
			var v any
			testkit.Must(t, json.Unmarshal([]byte(key), &v))
			spec["publicKey"] = v
		}); err != nil {
			t.Errorf("a key %s is refused: %v", text, err)
		}
	}
	for _, c := range []struct{ field, value string }{
		{"waves", `[1, "1%", "100%", 5000]`},
		{"configuration", `"# noPullImageSecretRecheck: true\nstateDir: /noPullImageSecretRecheck:"`},
		{"failureBudget", `"0%"`},
		{"soak", `"1h30m"`},
		{"confirmWithin", `"30s"`},
		{"image", `"registry.example.com:5000/a/b@sha256:` + strings.Repeat("0", 64) + `"`},
		{"image", `"[2001:db8::1]:5000/a__b/c-d.e:v1@sha256:` + strings.Repeat("0", 64) + `"`},
		{"image", `"pullgate:v1"`},
		{"nodeSelector", `{}`},
		{"nodeSelector", `{"matchLabels": {"a": "", "node.example.com/pool-1_a": "B.c"}}`},
		{"nodeSelector", `{"matchExpressions": [{"key": "a.b/C", "operator": "NotIn", "values": [""]}]}`},
		{"installFolder", `"/var/lib/pullgate-install"`},
		{"version", `"0123abc-dirty"`},
	} {
		if err := try(func(spec map[string]any) {
			var v any
			testkit.Must(t, json.Unmarshal([]byte(c.value), &v))
			spec[c.field] = v
		}); err != nil {
			t.Errorf("%s: %s is refused: %v", c.field, c.value, err)
		}
	}

	// What was created has the defaults, and cannot move.
	x.create("  paused: true")
	o := testkit.Value(x.fleet.rollouts.Get(t.Context(), x.pool, metav1.GetOptions{}))(t)
	spec, _ := o.Object["spec"].(map[string]any)
	for field, want := range map[string]string{
		"waves": `[1,"1%","10%",50]`, "failureBudget": "0", "confirmWithin": `"2m"`, "probation": `"1m"`,
		"installFolder": `"/opt/pullgate"`, "startupTaint": "false",
	} {
		testkit.Equal(t, field, string(testkit.Value(json.Marshal(spec[field]))(t)), want)
	}
	spec["installFolder"] = "/opt/another"
	_, err := x.fleet.rollouts.Update(t.Context(), o, metav1.UpdateOptions{})
	if err == nil || !strings.Contains(err.Error(), "installFolder cannot be changed") {
		t.Errorf("another installFolder is answered with %v", err)
	}
	x.becomes("Paused", "")
}

// The API server takes the Rollouts of the pages, and knows their fields.
func TestRolloutsOfThePages(t *testing.T) {
	x := begin(t, 0)
	pages := testkit.Value(filepath.Glob("../../docs/platforms/*.md"))(t)
	key := strings.Join(strings.Split(publicKey, `\n`)[1:3], "") // in one line
	found := 0
	for _, page := range append(pages, "../../docs/fleet.md") {
		text := string(testkit.Value(os.ReadFile(page))(t))
		for _, m := range regexp.MustCompile("(?s)```yaml\n(apiVersion: fleet.*?)```").FindAllStringSubmatch(text, -1) {
			found++
			o := parse(t, strings.Replace(m[1], "the key of the release", key, 1))
			o.SetName(x.pool)
			if _, err := x.fleet.rollouts.Create(t.Context(), o, metav1.CreateOptions{
				DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
			}); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
	if found < 2 {
		t.Errorf("%d Rollouts; want those of the fleet and of GKE", found)
	}
}

// TestPrinterColumns shows what kubectl get prints.
func TestPrinterColumns(t *testing.T) {
	x := begin(t, 1)
	x.create("")
	x.becomes("Complete", "installed 1")
	var table metav1.Table
	body, err := x.fleet.Client.CoreV1().RESTClient().Get().
		AbsPath("/apis/fleet.pullgate.dev/v1alpha1/rollouts/"+x.pool).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
	testkit.Must(t, err, json.Unmarshal(body, &table))
	var names, cells []string
	for i, c := range table.ColumnDefinitions {
		if c.Priority == 0 && c.Name != "Age" {
			names, cells = append(names, c.Name), append(cells, fmt.Sprint(table.Rows[0].Cells[i]))
		}
	}
	testkit.Equal(x, "columns", fmt.Sprint(names), "[Name Mode Version Phase Selected Installed Updating Failed]")
	testkit.Equal(x, "row", fmt.Sprint(cells), fmt.Sprintf("[%s Enforce v1 Complete 1 1 0 0]", x.pool))
}
