package engine

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"
)

func TestRedactMarkedHidesWhatIsMarkedAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ value, marks, want string }{
		"nothing marked":               {`{"a":1}`, `{}`, `{"a":1}`},
		"no marks at all":              {`{"a":1}`, `null`, `{"a":1}`},
		"a mark that is false":         {`{"a":1}`, `false`, `{"a":1}`},
		"the whole value":              {`{"a":1}`, `true`, `"(sensitive)"`},
		"one attribute":                {`{"a":1,"b":"x"}`, `{"b":true}`, `{"a":1,"b":"(sensitive)"}`},
		"deep in a list":               {`{"l":[{"p":"x","q":1},{"p":"y"}]}`, `{"l":[{"p":true},{}]}`, `{"l":[{"p":"(sensitive)","q":1},{"p":"y"}]}`},
		"a list longer than its marks": {`[1,2]`, `[true]`, `["(sensitive)",2]`},
		"marks of another shape":       {`"text"`, `{"b":true}`, `"(sensitive)"`},
		"a marked null":                {`null`, `{"b":true}`, `null`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var value, marks any
			if err := errors.Join(json.Unmarshal([]byte(test.value), &value), json.Unmarshal([]byte(test.marks), &marks)); err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(redactMarked(value, marks))
			if err != nil || string(got) != test.want {
				t.Errorf("got %s, want %s (%v)", got, test.want, err)
			}
		})
	}
}

func FuzzRedactMarkedNeverShowsASentinel(f *testing.F) {
	f.Add(`{"a":"SENTINEL","b":[1]}`, `{"a":true}`)
	f.Add(`["SENTINEL"]`, `[true]`)
	f.Add(`{"a":{"b":"SENTINEL"}}`, `{"a":{"b":true}}`)
	f.Fuzz(func(t *testing.T, text, marksText string) {
		var value, marks any
		if json.Unmarshal([]byte(text), &value) != nil || json.Unmarshal([]byte(marksText), &marks) != nil {
			return
		}
		if strings.Contains(text, "SENTINEL") && marks == true {
			if got, _ := json.Marshal(redactMarked(value, marks)); strings.Contains(string(got), "SENTINEL") {
				t.Errorf("redactMarked(%s, %s) = %s", text, marksText, got)
			}
		}
		_ = redactMarked(value, marks) // whatever the shapes, no panic
	})
}

func TestOpaqueSeesEffectsThatThePlanDoesNotShow(t *testing.T) {
	t.Parallel()
	const plain = `{"format_version":"1.2","resource_changes":[{"address":"module.m[\"k.v\"].x.a[0]","module_address":"module.m[\"k.v\"]","mode":"managed","type":"x","name":"a",
	  "change":{"actions":["create"],"before":null,"after":{"in":"v"},"after_unknown":{"id":true}}}],
	  "configuration":{"root_module":{"module_calls":{"m":{"module":{"resources":[{"address":"x.a","mode":"managed","type":"x","name":"a","expressions":{"in":{"constant_value":"v"}}}]}}}}}}`
	for name, test := range map[string]struct {
		old, new string
		want     bool
	}{
		"everything is known": {},
		"a provisioner": {
			old: `"expressions":`, new: `"provisioners":[{"type":"local-exec"}],"expressions":`, want: true,
		},
		"a configured value that is unknown":            {old: `{"id":true}`, new: `{"id":true,"in":true}`, want: true},
		"a configured value of which a part is unknown": {old: `{"id":true}`, new: `{"in":[{"x":true}]}`, want: true},
		"a write-only attribute":                        {old: `{"in":"v"},"after_unknown"`, new: `{"in":null},"after_unknown"`, want: true},
		"a read during the apply": {old: `"mode":"managed","type":"x","name":"a",
	  "change":{"actions":["create"]`, new: `"mode":"data","type":"x","name":"a",
	  "change":{"actions":["read"]`, want: true},
		"an ephemeral resource": {old: `{"address":"x.a","mode":"managed"`, new: `{"address":"ephemeral.x.t","mode":"ephemeral","type":"t","name":"t"},{"address":"x.a","mode":"managed"`, want: true},
		"a deletion":            {old: `["create"]`, new: `["delete"]`},
		"nothing to do":         {old: `["create"]`, new: `["no-op"]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(plain, test.old, test.new, 1)
			if test.old != "" && text == plain {
				t.Fatal("the case changes nothing")
			}
			plan := &tfjson.Plan{}
			if err := json.Unmarshal([]byte(text), plan); err != nil {
				t.Fatal(err)
			}
			if got := opaque(plan); got != test.want {
				t.Errorf("opaque = %v, want %v", got, test.want)
			}
		})
	}
}

func TestFindModuleFollowsLocalModules(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"a module alone": {
			files: map[string]string{"app/main.tf": "", "other/main.tf": ""},
			want:  []string{"app"},
		},
		"local modules, one calling another": {
			files: map[string]string{
				"app/main.tf": "module \"a\" {\n  source = \"../a\"\n}", "a/main.tf": `module "b" { source = "./b" }`, "a/b/main.tf": "",
				"other/main.tf": "",
			},
			want: []string{"a", "a/b", "app"},
		},
		"JSON syntax": {
			files: map[string]string{"app/main.tf.json": `{"module":{"a":{"source":"../a"}}}`, "a/main.tf": ""},
			want:  []string{"a", "app"},
		},
		"modules that call one another": {
			files: map[string]string{"app/main.tf": `module "a" { source = "../a" }`, "a/main.tf": `module "b" { source = "../app" }`},
			want:  []string{"a", "app"},
		},
		"another reference to a parent directory counts everything": {
			files: map[string]string{"app/main.tf": `locals { x = file("${path.module}/../shared.yaml") }`, "shared.yaml": ""},
			want:  []string{"."},
		},
		"a template that reads a parent directory counts everything": {
			files: map[string]string{"app/main.tf": "", "app/x.tftpl": `${file("../y")}`},
			want:  []string{"."},
		},
		"a call that leaves the source": {
			files: map[string]string{"app/main.tf": `module "a" { source = "../../elsewhere" }`},
			want:  []string{"."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for name, text := range test.files {
				path := filepath.Join(root, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			got, err := findModule(root, "app")
			if err != nil || !slices.Equal(got.dirs, test.want) {
				t.Errorf("dirs = %q, want %q (%v)", got.dirs, test.want, err)
			}
		})
	}
}

func TestHeldLockReadsTheWordsOfBothTools(t *testing.T) {
	t.Parallel()
	const info = `
Lock Info:
  ID:        8a5f5a3c-0f6e-7a2c-9f53-3fb1b9f0a1d2
  Path:
  Operation: OperationTypeApply
  Who:       root@runner-0
  Version:   1.12.6
  Created:   2026-11-30 16:26:33.1 +0000 UTC
  Info:
`
	for name, err := range map[string]*toolError{
		"a JSON diagnostic":       {errors: []diagnostic{{Summary: "Error acquiring the state lock", Detail: "held" + info}}},
		"words on stderr":         {stderr: "Error: Error acquiring the state lock\n" + info},
		"words in a coloured box": {stderr: "\x1b[31m│\x1b[0m " + strings.ReplaceAll(info, "\n", "\n\x1b[31m│\x1b[0m ")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := heldLock(err)
			if lock.GetId() != "8a5f5a3c-0f6e-7a2c-9f53-3fb1b9f0a1d2" || lock.GetWho() != "root@runner-0" || lock.GetOperation() != "OperationTypeApply" || lock.GetCreatedUnix() != 1796055993 {
				t.Errorf("lock = %v", lock)
			}
		})
	}
	if lock := heldLock(&toolError{stderr: "Error: no such host"}); lock != nil {
		t.Errorf("lock = %v, want none", lock)
	}
}

func TestTheFirstErrorLineIsTheTools(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"\n\x1b[31m╷\x1b[0m\n│ \x1b[1mError: \x1b[0mNo such file\n│ details\n╵\n": "No such file",
		"Error: one\n\nError: two\n": "one",
		"Warning: nothing":           "",
	} {
		if got := firstErrorLine(text); got != want {
			t.Errorf("firstErrorLine(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestBackendSettingsAreLiteral(t *testing.T) {
	t.Parallel()
	in := &inputs{Backend: map[string]string{"b": `quote " and ${var.x} %{if}`, "a": "line\nbreak"}}
	want := "a = \"line\\nbreak\"\nb = \"quote \\\" and $${var.x} %%{if}\"\n"
	if got := string(in.backendConfig()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestADamagedRecordIsNoticed(t *testing.T) {
	t.Parallel()
	content := []byte(`{"key":"a2V5"}`)
	if got, err := unpack(pack(content)); err != nil || string(got) != string(content) {
		t.Errorf("unpack(pack(x)) = %s, %v", got, err)
	}
	if _, err := unpack([]byte("no gzip")); err == nil {
		t.Error("unpack accepts what is not packed")
	}
	if a, b := (&record{Key: []byte("k")}).digest([]byte("ab"), []byte("c")), (&record{Key: []byte("k")}).digest([]byte("a"), []byte("bc")); string(a) == string(b) {
		t.Error("the digest does not tell parts apart")
	}
	if len(RecordName(strings.Repeat("x", 253))) > 253 || RecordName(strings.Repeat("x", 252)) == RecordName(strings.Repeat("x", 253)) {
		t.Error("long names are not shortened apart")
	}
	if got := labelValue(strings.Repeat("x", 100)); len(got) > 63 {
		t.Errorf("label value has %d characters", len(got))
	}
}
