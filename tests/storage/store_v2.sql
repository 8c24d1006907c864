-- A store of version 2 with an evaluation and two models, a dump of the file.
BEGIN TRANSACTION;
CREATE TABLE treecv_evaluations (
	run VARCHAR(32) NOT NULL,
	"key" VARCHAR(64) NOT NULL,
	fingerprint VARCHAR(64) NOT NULL,
	study_name VARCHAR,
	trial_number INTEGER,
	state VARCHAR(8) NOT NULL,
	learner VARCHAR NOT NULL,
	parameters JSON NOT NULL,
	cv VARCHAR NOT NULL,
	n_folds INTEGER NOT NULL,
	n_repeats INTEGER NOT NULL,
	n_rows BIGINT NOT NULL,
	n_features INTEGER NOT NULL,
	"order" VARCHAR NOT NULL,
	method VARCHAR NOT NULL,
	scoring VARCHAR NOT NULL,
	direction VARCHAR(8) NOT NULL,
	random_state VARCHAR NOT NULL,
	mean DOUBLE,
	std DOUBLE,
	folds_scored INTEGER NOT NULL,
	diverged_folds INTEGER NOT NULL,
	n_updates BIGINT NOT NULL,
	n_updates_saved BIGINT DEFAULT 0 NOT NULL,
	n_updates_standard BIGINT NOT NULL,
	seconds DOUBLE NOT NULL,
	seconds_prepare DOUBLE NOT NULL,
	created_at DATETIME NOT NULL,
	versions JSON NOT NULL,
	PRIMARY KEY (run)
);
INSERT INTO "treecv_evaluations" VALUES('00000000000000000000000000000001','5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f','a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0','old',0,'complete','PegasosClassifier','{"alpha": 0.5}','4',4,1,100,5,'fixed','treecv','error','minimize','0',0.25,0.1,4,0,150,50,300,0.5,0.0,'2026-11-01 12:00:00.000000','{"optuna-treecv": "0.1.0"}');
CREATE TABLE treecv_fold_score_blocks (
	run VARCHAR(32) NOT NULL,
	n_scores BIGINT NOT NULL,
	scores BLOB NOT NULL,
	PRIMARY KEY (run),
	FOREIGN KEY(run) REFERENCES treecv_evaluations (run) ON DELETE CASCADE
);
CREATE TABLE treecv_fold_scores (
	run VARCHAR(32) NOT NULL,
	fold INTEGER NOT NULL,
	score DOUBLE NOT NULL,
	PRIMARY KEY (run, fold),
	FOREIGN KEY(run) REFERENCES treecv_evaluations (run) ON DELETE CASCADE
);
INSERT INTO "treecv_fold_scores" VALUES('00000000000000000000000000000001',0,0.125);
INSERT INTO "treecv_fold_scores" VALUES('00000000000000000000000000000001',1,0.25);
INSERT INTO "treecv_fold_scores" VALUES('00000000000000000000000000000001',2,0.25);
INSERT INTO "treecv_fold_scores" VALUES('00000000000000000000000000000001',3,0.375);
CREATE TABLE treecv_models (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	"key" BLOB NOT NULL,
	low DOUBLE,
	high DOUBLE,
	n_bytes BIGINT NOT NULL,
	seconds DOUBLE NOT NULL,
	created_at DATETIME NOT NULL,
	payload BLOB NOT NULL
);
INSERT INTO "treecv_models" VALUES(1,X'6B6B6B6B6B6B6B6B6B6B6B6B6B6B6B6B',NULL,NULL,36,1.5,'2026-11-21 16:32:26.188900',X'544356310800000000000000E8316EF8A5095F21542FD7513C52C4AA0001020304050607');
INSERT INTO "treecv_models" VALUES(2,X'6D6D6D6D6D6D6D6D6D6D6D6D6D6D6D6D',0.25,0.5,32,2.5,'2026-11-21 16:32:26.189444',X'5443563104000000000000000E3DE33872BD78088B1541AF88E3ADC500010203');
CREATE TABLE treecv_schema (
	version INTEGER NOT NULL,
	PRIMARY KEY (version)
);
INSERT INTO "treecv_schema" VALUES(2);
CREATE INDEX ix_treecv_evaluations_study_name ON treecv_evaluations (study_name);
CREATE INDEX ix_treecv_evaluations_key ON treecv_evaluations ("key");
CREATE INDEX ix_treecv_models_key ON treecv_models ("key");
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('treecv_models',2);
COMMIT;
